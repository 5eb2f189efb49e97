"""The tree that a stage decodes with, from its configuration."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from specflow.stages.contract import Context, StageError


def asked_shape(tree: Any, drafters: Collection[str] | None, proposer: Any, context: Context) -> Any:
    """What to draft with: ``TreeShape``; ``auto``, where that is asked for; none: chains.

    ``drafters``: names of those that draft trees, none: all. Raises ``StageError`` if this one cannot.
    """
    if tree is None or (drafters is not None and context.item not in drafters):
        return None
    return shape_of(tree, proposer)


def shape_of(tree: Any, proposer: Any) -> Any:
    """``TreeShape``, or ``auto``; ``StageError`` if ``proposer`` drafts chains only."""
    from specflow.decoding.trees import TreeShape
    from specflow.drafters.base import Expands

    if not isinstance(proposer, Expands):
        raise StageError(f"{type(proposer).__name__} proposes chains only: leave `tree` out, or name other drafters")
    return tree if tree == "auto" else TreeShape(**tree.model_dump())
