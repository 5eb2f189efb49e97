"""The best nodes of an expansion become the tree that is verified (METHODS 3).

Legend: B requests, X nodes of the expansion, D slots of the tree with the anchor's at 0.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.build_tree.reference import build_tree_reference
from specflow_kernels.build_tree.tree import Tree
from specflow_kernels.choice import Choice, choose

LARGEST_TREE = 128
LARGEST_EXPANSION = 8192

__all__ = ["Tree", "build_tree", "explain"]


def build_tree(
    anchor_B: Tensor, scores_BX: Tensor, tokens_BX: Tensor, parent_BX: Tensor, *, slots: int, levels: int
) -> Tree:
    """The ``slots - 1`` best nodes of each request behind its anchor, in the order of the expansion.

    ``scores_BX``: floating point, a path's score; of equal scores the lower node is better. ``parent_BX``: a node's
    parent, which has a lower number and no lower score, so that no node is chosen without its parent; -1 for children
    of the anchor. ``levels``: the depth of the expansion. Raises ``ValueError`` if shapes do not fit.
    """
    _check(anchor_B, scores_BX, tokens_BX, parent_BX, slots, levels)
    given = (anchor_B, scores_BX, tokens_BX, parent_BX)
    run = build_tree_reference
    if explain(*given, slots=slots, levels=levels).kernel:
        from specflow_kernels.build_tree.launching import build_tree_triton

        run = build_tree_triton
    return run(*given, slots=slots, levels=levels)


def explain(
    anchor_B: Tensor, scores_BX: Tensor, tokens_BX: Tensor, parent_BX: Tensor, *, slots: int, levels: int
) -> Choice:
    """What :func:`build_tree` would run for these tensors, and why."""
    nodes = scores_BX.shape[1]
    return choose(
        (scores_BX, anchor_B, tokens_BX, parent_BX),
        refusals=(
            (slots > LARGEST_TREE, f"{slots} slots; the kernel's tiles hold up to {LARGEST_TREE}"),
            (nodes > LARGEST_EXPANSION, f"{nodes} nodes; the kernel's tiles hold up to {LARGEST_EXPANSION}"),
        ),
    )


def _check(anchor: Tensor, scores: Tensor, tokens: Tensor, parent: Tensor, slots: int, levels: int) -> None:
    shape = tuple(scores.shape)
    problems = [
        f"{name} {tuple(tensor.shape)}, expected {wanted}"
        for name, tensor, wanted in (
            ("anchor", anchor, shape[:1]), ("tokens", tokens, shape), ("parent", parent, shape),
        )
        if tuple(tensor.shape) != wanted
    ]  # fmt: skip
    if not 1 <= slots <= shape[1] + 1:
        problems.append(f"{slots} slots, expected 1 to {shape[1] + 1}: the anchor and a node each")
    if levels < 0:
        problems.append(f"{levels} levels, expected at least 0")
    if problems:
        raise ValueError(f"scores {shape} do not fit: {'; '.join(problems)}")
