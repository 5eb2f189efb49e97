"""The tree of proposals that is verified.

Legend: B requests, D slots with the anchor's at 0.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tree(NamedTuple):
    """A request with a NaN score has -1 for every token and no links: nothing of it is to be verified."""

    tokens_BD: Tensor
    parent_BD: Tensor
    """Slot of the parent; -1 for the anchor."""
    child_BD: Tensor
    """The first child; -1 for none."""
    sibling_BD: Tensor
    """The next sibling; -1 for none."""
    depth_BD: Tensor
    """Tokens between the anchor and the slot, so that its position is the anchor's plus this."""
    visible_BDD: Tensor
    """Whether a slot sees another one: itself and its ancestors."""
