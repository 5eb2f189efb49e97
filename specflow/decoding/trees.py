"""EAGLE-2's dynamic trees: what a drafter thinks likely is grown level by level, and the best of it is verified.

METHODS 3, ``SGLANG_CONTRACT`` G. The score of a node is the sum of log q along its path: a proposal's score, not the
probability that it is accepted. Pure functions of what the drafter answers; equal scores are ordered by creation, and
equal q by id, so that a tree does not depend on how a machine sorts. Legend: b nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from specflow.drafters.base import Expands


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """How trees are grown and cut. ``topk`` 1 is a chain. Raises ``ValueError`` where the numbers do not fit."""

    steps: int
    """Levels below the anchor."""
    topk: int
    """Nodes of a level that are expanded, and children of each."""
    num_draft_tokens: int
    """Rows that the target verifies at most, the anchor included (as SGLang counts)."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.topk < 1:
            raise ValueError(f"a tree of {self.steps} steps and topk {self.topk}: expected at least 1 of each")
        if not 2 <= self.num_draft_tokens <= self.generated + 1:
            raise ValueError(
                f"num_draft_tokens {self.num_draft_tokens}: expected 2 to {self.generated + 1}, the anchor and the "
                f"nodes that {self.steps} steps with topk {self.topk} generate"
            )

    @property
    def generated(self) -> int:
        """Nodes generated at most."""
        return self.topk + (self.steps - 1) * self.topk**2

    @property
    def expanded(self) -> int:
        """Nodes that the drafter holds at most, the anchor left out."""
        return (self.steps - 1) * self.topk


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Proposals in the order of their slots: slot 0 is the anchor, the i-th token is in slot i + 1.

    Raises ``ValueError`` on a node before its parent, or on siblings with the same token.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    """The parent's slot, of every token."""

    def __post_init__(self) -> None:
        edges = list(zip(self.parents, self.tokens, strict=True))
        if any(not 0 <= parent <= i for i, parent in enumerate(self.parents)) or len(set(edges)) < len(edges):
            raise ValueError(
                f"(parent, token) {edges}: expected parents before their children and siblings that differ"
            )

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Tree:
        return cls(tokens=tokens, parents=range(len(tokens)))

    @cached_property
    def children(self) -> list[list[int]]:
        """Slots of every slot's children, in ascending order (``retrieve_next_token`` and ``_next_sibling``)."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for i, parent in enumerate(self.parents):
            found[parent].append(i + 1)
        return found

    @cached_property
    def depths(self) -> list[int]:
        """Of every slot; the anchor's is 0."""
        found = [0]
        for parent in self.parents:
            found.append(found[parent] + 1)
        return found


@dataclass(slots=True)
class Grown:
    """Every node generated so far, in the order of creation."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Number of the parent in this order; -1: the anchor."""
    scores: list[float] = field(default_factory=list)
    """Never above the parent's."""


def draft_tree(expands: Expands, anchor: int, shape: TreeShape) -> Tree:
    """Grow a tree after ``anchor`` and keep its best nodes."""
    *_, grown = grow(expands, anchor, steps=shape.steps, topk=shape.topk)
    return keep_best(grown, shape.num_draft_tokens - 1)


def grow(expands: Expands, anchor: int, *, steps: int, topk: int) -> Iterator[Grown]:
    """The nodes after each level: the ``topk`` best nodes of a level get their ``topk`` likeliest children.

    Yields the same object again and again. Ends early where nothing has a probability.
    """
    grown, frontier, numbers = Grown(), [-1], {-1: 0}
    for step in range(steps):
        if step == 0:
            log_q_bV = expands.begin_tree(anchor).unsqueeze(0)
        else:
            parents = [numbers[grown.parents[node]] for node in frontier]
            log_q_bV = expands.expand(torch.tensor([grown.tokens[node] for node in frontier]), torch.tensor(parents))
            numbers.update({node: len(numbers) + i for i, node in enumerate(frontier)})
        first = len(grown.tokens)
        for node, children in zip(frontier, likeliest(log_q_bV, topk), strict=True):
            score = grown.scores[node] if node >= 0 else 0.0
            for token, log_q in children:
                grown.tokens.append(token)
                grown.parents.append(node)
                grown.scores.append(score + min(log_q, 0.0))  # rounding may leave a certain token above 0
        yield grown
        frontier = _best(grown.scores, range(first, len(grown.tokens)), topk)
        if not frontier:
            return


def keep_best(grown: Grown, count: int) -> Tree:
    """The ``count`` best nodes, in the order of creation.

    No child is kept without its parent: a parent's score is at least its child's, and it was created before.
    """
    kept = sorted(_best(grown.scores, range(len(grown.scores)), count))
    slots = {-1: 0, **{node: i + 1 for i, node in enumerate(kept)}}
    return Tree(tokens=[grown.tokens[node] for node in kept], parents=[slots[grown.parents[node]] for node in kept])


def likeliest(log_q_bV: Tensor, topk: int) -> list[list[tuple[int, float]]]:
    """Of every row, its ``topk`` likeliest tokens with log q, in order; those without a probability left out.

    Equal ones are ordered by id. Raises ``ValueError`` where log q is not a number.
    """
    log_q_bV = log_q_bV.float()
    values_bk, ids_bk = log_q_bV.topk(min(topk, log_q_bV.shape[1]))
    if bool(values_bk.isnan().any()):
        raise ValueError("log q of a drafted node: expected numbers, found one that is not")
    if bool(((log_q_bV >= values_bk[:, -1:]).sum(dim=1) > values_bk.shape[1]).any()):  # a tie at the border
        values_bk, ids_bk = (part[:, : values_bk.shape[1]] for part in log_q_bV.sort(descending=True, stable=True))
    else:
        ids_bk, order_bk = ids_bk.sort()
        values_bk, order_bk = values_bk.gather(1, order_bk).sort(descending=True, stable=True)
        ids_bk = ids_bk.gather(1, order_bk)
    rows = zip(ids_bk.tolist(), values_bk.tolist(), strict=True)
    return [[(i, value) for i, value in zip(*row, strict=True) if value > -inf] for row in rows]


def _best(scores: Sequence[float], nodes: Sequence[int], count: int) -> list[int]:
    """The ``count`` best of ``nodes``, best first, of equal ones the first created."""
    return sorted(nodes, key=lambda node: (-scores[node], node))[:count]
