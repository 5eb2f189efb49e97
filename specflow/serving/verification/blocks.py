"""Blocks of stored documents, run as in training and as in decoding.

Legend: T tokens of a document, K captured layers, H hidden size, B rows of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specflow.drafters.base import Committed, Inspectable
from specflow.drafters.registry import get_method
from specflow.drafters.training import Source

if TYPE_CHECKING:
    from specflow.features.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One place of a stored document where a round could begin."""

    document: Document
    position: int
    """Of the anchor; features of the rows before it are committed."""

    @property
    def token(self) -> int:
        return int(self.document.token_ids_T[self.position])

    def __str__(self) -> str:
        return f"document {self.document.id or self.document.index}, position {self.position}"


def anchors_of(documents: Sequence[Document], *, per_document: int) -> Iterator[Anchor]:
    """Evenly spaced supervised positions that have a committed row before them."""
    for document in documents:
        places = [int(p) for p in document.supervised_T.nonzero().flatten() if p >= 1]
        stride = max(len(places) // per_document, 1)
        for position in places[::stride][:per_document]:
            yield Anchor(document=document, position=position)


def decoding_hidden(proposer: Inspectable, anchor: Anchor, *, cuts: Sequence[int] = ()) -> Tensor:
    """``[m, H]``: the incremental forward; the prefix is committed in pieces of sizes ``cuts``, then the rest."""
    proposer.reset(anchor.position)
    done = 0
    for size in [*cuts, anchor.position]:
        rows = min(size, anchor.position - done)
        if rows > 0:
            proposer.extend(Committed.of_text(anchor.document, done, done + rows))
            done += rows
    following_m = anchor.document.token_ids_T[anchor.position + 1 :][: proposer.num_proposals]
    return proposer.hidden(anchor.token, following_m).clone()


def rounds_of(anchor: Anchor, *, largest: int) -> list[int]:
    """A plausible way the prefix was committed: half of it as the prompt, then rounds of 1, 2, .., ``largest`` rows."""
    sizes, left, step = [anchor.position // 2], anchor.position - anchor.position // 2, 0
    while left > 0:
        sizes.append(min(step % largest + 1, left))
        left, step = left - sizes[-1], step + 1
    return [size for size in sizes if size]


def training_hidden(method: str, network: nn.Module, embed: Callable[[Tensor], Tensor], anchor: Anchor) -> Tensor:
    """``[m, H]``: the training forward with this one anchor. Raises ``ValueError`` for an unknown method."""
    document = anchor.document
    source = Source(
        token_ids_T=document.token_ids_T,
        supervised_T=document.supervised_T,
        features_TKH=document.features_TKH,
        last_hidden_TH=document.last_hidden_TH,
        anchors=torch.tensor([anchor.position]),
    )
    with torch.no_grad():
        return get_method(method).training_hidden(network, embed, source)[0]
