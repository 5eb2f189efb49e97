"""Which tree is fastest here: predicted from measured costs and from the target's own texts.

At every position of texts that the target has written, trees are drafted and compared with what follows. The text's
next tokens are draws from the target, so a path of the tree is right as often as verification accepts it, greedy or
sampled. Each shape then walks the texts as decoding would, round by round: rounds begin more often where little is
accepted, so a mean over positions would flatter. One drafting of the deepest tree gives every smaller one of the same
topk: levels do not depend on later ones. Costs: of drafting per level, of the target's pass per number of rows, of
feeding committed rows to the drafter; tokens per second are tokens per round over their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from specflow.decoding.trees import Grown, TreeShape, grow
from specflow.drafters.base import Committed, Expands, Proposer
from specflow.targets.base import TargetOutput
from specflow.targets.target import Target

STEPS = 8
TOPK = (1, 2, 4, 8)
ROWS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64)
REPEATS = 5
POSITIONS = 40
"""Of a text, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    shape: TreeShape
    tau: float
    """Tokens per round, the target's own included."""
    draft_seconds: float
    verify_seconds: float
    state_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tau / (self.draft_seconds + self.verify_seconds + self.state_seconds)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Predictions in the order of their speed, best first."""

    predictions: Sequence[Prediction]
    chain: Prediction
    """The drafter's own chain, or the longest that was drafted."""
    positions: int

    @property
    def best(self) -> Prediction:
        return self.predictions[0]

    @property
    def gain(self) -> float:
        """Predicted speed over that of the chain."""
        return self.best.tokens_per_second / self.chain.tokens_per_second

    def as_json(self) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "best": self.best.as_json(),
            "chain": self.chain.as_json(),
            "gain": self.gain,
            "next_best": [prediction.as_json() for prediction in self.predictions[1:6]],
        }

    def __str__(self) -> str:
        shape = self.best.shape
        return (
            f"tree of {shape.steps} steps, topk {shape.topk}, {shape.num_draft_tokens} rows: predicted tau "
            f"{self.best.tau:.2f} and {self.best.tokens_per_second:.1f} tokens/s, {self.gain:.2f} times the chain of "
            f"{self.chain.shape.steps} (tau {self.chain.tau:.2f}), from {self.positions} positions"
        )


@dataclass(frozen=True, slots=True)
class Written:
    prompt: Sequence[int]
    answer: Sequence[int]
    """Written by the target, with the sampling that the choice is for."""


def choose_tree(target: Target, proposer: Proposer, texts: Sequence[Written]) -> Choice:
    """Raises ``ValueError`` where the proposer does not expand, or no answer is longer than ``STEPS`` tokens."""
    if not isinstance(proposer, Expands):
        raise ValueError(f"a tree: {type(proposer).__name__} proposes chains only")
    walk = _Walk(target, proposer)
    for text in texts:
        walk.add(text)
    if not walk.positions:
        raise ValueError(
            f"tree: auto needs answers of more than {STEPS + 1} tokens: use other prompts, or name a shape"
        )
    longest = max(len(text.prompt) + len(text.answer) for text in texts)
    verify = verify_seconds(target, longest, proposer.layer_ids)
    predictions = [
        Prediction(
            shape=shape,
            tau=walk.tokens[shape] / walk.rounds[shape],
            draft_seconds=median(walk.draft_seconds[shape.topk, shape.steps]),
            verify_seconds=verify[shape.num_draft_tokens],
            state_seconds=median(walk.state_seconds or [0.0]),
        )
        for shape in candidates()
    ]
    chains = {p.shape.steps: p for p in predictions if p.shape.topk == 1}
    ranked = sorted(predictions, key=lambda p: -p.tokens_per_second)
    return Choice(predictions=ranked, chain=chains[min(proposer.num_proposals, STEPS)], positions=walk.positions)


def candidates() -> Iterator[TreeShape]:
    """Chains of every length, then trees of every topk, depth and size that fit."""
    for topk in TOPK:
        for steps in range(1, STEPS + 1):
            most = TreeShape(steps=steps, topk=topk, num_draft_tokens=2).generated + 1
            sizes = [steps + 1] if topk == 1 else [rows for rows in ROWS if steps < rows <= most]
            for size in sizes:
                yield TreeShape(steps=steps, topk=topk, num_draft_tokens=size)


class _Walk:
    """Drafts at positions of texts and adds up what rounds would give, by shape."""

    def __init__(self, target: Target, proposer: Any) -> None:
        self._target, self._proposer = target, proposer
        self._shapes: dict[tuple[int, int], list[TreeShape]] = defaultdict(list)
        for shape in candidates():
            self._shapes[shape.topk, shape.steps].append(shape)
        self.positions = 0
        self.tokens: dict[TreeShape, int] = defaultdict(int)
        self.rounds: dict[TreeShape, int] = defaultdict(int)
        self._accepted: dict[TreeShape, list[int]] = defaultdict(list)
        """At every position of the text at hand."""
        self.draft_seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.state_seconds: list[float] = []

    def add(self, text: Written) -> None:
        ids = [*text.prompt, *text.answer]
        cache = self._target.new_cache(1, len(ids))
        output = self._target.forward(torch.tensor([ids]), cache, layer_ids=self._proposer.layer_ids)
        self._proposer.reset(len(ids) + max(ROWS) + STEPS * max(TOPK))
        committed = 0
        positions = range(len(text.prompt), min(len(ids) - STEPS, len(text.prompt) + POSITIONS))
        for position in positions:
            begin = perf_counter()
            self._proposer.extend(_rows(output, ids, committed, position))
            if committed:  # the prompt's rows are not those of a round
                self.state_seconds.append(perf_counter() - begin)
            committed = position
            for topk in TOPK:
                self._draft(ids[position], ids[position + 1 :], topk)
        self.positions += len(positions)
        for shape, accepted in self._accepted.items():
            at = 0
            while at < len(accepted):
                step = accepted[at] + 1
                at, self.tokens[shape], self.rounds[shape] = (
                    at + step,
                    self.tokens[shape] + step,
                    self.rounds[shape] + 1,
                )
        self._accepted.clear()

    def _draft(self, anchor: int, following: Sequence[int], topk: int) -> None:
        begin, steps, ranks = perf_counter(), 0, list[int]()
        spent = 0.0
        for grown in grow(self._proposer, anchor, steps=STEPS, topk=topk):
            spent, steps = spent + perf_counter() - begin, steps + 1
            ranks = ranks_of(grown, following)
            self._note(topk, steps, spent, ranks)
            begin = perf_counter()
        for more in range(steps + 1, STEPS + 1):  # nothing left to expand: a deeper tree is the same
            self._note(topk, more, spent, ranks)

    def _note(self, topk: int, steps: int, seconds: float, ranks: Sequence[int]) -> None:
        self.draft_seconds[topk, steps].append(seconds)
        for shape in self._shapes[topk, steps]:
            self._accepted[shape].append(sum(rank < shape.num_draft_tokens - 1 for rank in ranks))


def ranks_of(grown: Grown, following: Sequence[int]) -> list[int]:
    """The ranks by score of the nodes on the path that the text takes, from the top down: they rise."""
    order = sorted(range(len(grown.scores)), key=lambda node: (-grown.scores[node], node))
    ranks = {node: rank for rank, node in enumerate(order)}
    edges = {(parent, token): i for i, (parent, token) in enumerate(zip(grown.parents, grown.tokens, strict=True))}
    found, node = list[int](), -1
    for token in following:
        if (node, token) not in edges:
            break
        node = edges[node, token]
        found.append(ranks[node])
    return found


def _rows(output: TargetOutput, ids: Sequence[int], start: int, stop: int) -> Committed:
    hidden_TH = output.last_hidden_BTH[0, start:stop]
    return Committed(
        features_TKH=hidden_TH[:, None][:, :0] if output.features_BTKH is None else output.features_BTKH[0, start:stop],
        next_ids_T=torch.tensor(ids[start + 1 : stop + 1]),
        last_hidden_TH=hidden_TH,
    )


def verify_seconds(target: Target, length: int, layer_ids: tuple[int, ...]) -> dict[int, float]:
    """By number of rows: the target's pass behind ``length`` committed positions, head included; median of a few."""
    cache = target.new_cache(1, length + max(ROWS))
    target.forward(torch.zeros(1, length, dtype=torch.int64), cache)
    cache.commit(length)
    found = {}
    for rows in ROWS:
        ids, parents = torch.zeros(1, rows, dtype=torch.int64), torch.tensor([[-1, *[0] * (rows - 1)]])
        seconds = []
        for _ in range(REPEATS + 1):  # the first one allocates
            begin = perf_counter()
            output = target.forward(ids, cache, layer_ids=layer_ids, parents_BT=parents)
            target.head(output.last_hidden_BTH).argmax(dim=-1)
            cache.commit_paths([[]])
            seconds.append(perf_counter() - begin)
        found[rows] = median(seconds[1:])
    return found
