"""One document with its features. Legend: T tokens, K captured layers, H hidden size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Rows are unshifted: row t of every tensor belongs to token t.

    Features and last hidden state may end before the tokens do, where only usable rows are stored.
    """

    index: int
    split: str
    """``train`` or ``heldout``."""
    kind: str
    id: str = ""
    greedy: bool = False
    """The supervised tokens are the target's own greedy choices, given the document's tokens before them."""
    token_ids_T: Tensor
    """int64."""
    supervised_T: Tensor
    """bool."""
    features_TKH: Tensor
    """bfloat16, layers in the order of the contract."""
    last_hidden_TH: Tensor
    """bfloat16, after the final norm; as many rows as the features."""
