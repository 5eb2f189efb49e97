"""A frozen target in process, as the stages and the engine see it.

Legend: B requests, T rows of one pass, K captured layers, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class TargetError(ValueError):
    """A model that cannot be loaded or run as a target; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    last_hidden_BTH: Tensor
    """After the final norm: what the head reads."""
    features_BTKH: Tensor | None
    """Outputs of the captured layers (residual stream after the MLP add), in layer order; none if not asked."""
