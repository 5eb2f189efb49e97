"""One optimiser step's loss and gradients, equal for any split into passes and ranks (METHODS 9.6).

Denominators are summed over every pass of every rank before the first gradient, so each pass adds exactly its share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specflow.drafters.devices import to_device
from specflow.drafters.training import Counts, Learner, Progress, Source
from specflow.training.passes import split_sources
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped

AGREEMENT = 1e-3
"""Relative difference between announced and actual denominators that rounding may cause."""


class WrongDenominator(RuntimeError):
    """A method's ``denominators`` are not those of its ``objective``: the loss would depend on the split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over one step and all ranks; documents without an anchor contribute zero and are counted."""

    numerators: Mapping[str, float]
    denominators: Mapping[str, float]
    weights: Mapping[str, float]
    counts: Counts
    documents: int
    documents_without_anchor: int

    @property
    def loss(self) -> float:
        """The weighted sum of the terms' ratios; a term without a denominator counts zero."""
        return sum(w * self.numerators[n] / d for n, w in self.weights.items() if (d := self.denominators[n]) > 0)

    @property
    def trained(self) -> bool:
        """Whether anything in the step had a gradient."""
        return any(value > 0 for value in self.denominators.values())


def accumulate_gradients(
    wrapped: Wrapped,
    learner: Learner,
    sources: Sequence[Source],
    *,
    progress: Progress,
    ranks: Ranks,
    documents_per_pass: int | None = None,
    autocast: bool = False,
) -> StepSums:
    """Add the gradient of the step's loss to the parameters' ``grad``, summed over all ranks.

    ``sources``: this rank's documents, ``documents_per_pass`` of them in one forward pass; none: as many as the method
    can take. ``autocast``: bf16 products.
    """
    groups = split_sources(sources, anchors=learner.anchors_per_pass, documents=documents_per_pass)
    prepared = (learner.prepare(group) for group in groups)
    batches: list[Any | None] = [to_device(batch, ranks.device) for batch in prepared if batch is not None]
    known = _known(learner, batches, sources, progress, ranks=ranks, autocast=autocast)
    if not known.trained:
        return known
    # Every rank makes as many passes as the one with most; a pass without a batch contributes zero.
    batches += [None] * (ranks.most(len(batches)) - len(batches))
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in known.weights}
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        with wrapped.passing(last=last):
            with _autocast(ranks, autocast):
                every = last and ranks.size > 1
                loss, sums = wrapped.module(batch, known.denominators, progress, every)
            loss.backward()
        for name, pair in sums.items():
            found[name].append(pair)
    actual = ranks.sums([float(sum(float(pair[i]) for pair in found[name])) for name in found for i in (0, 1)])
    numerators, denominators = dict(zip(found, actual[::2], strict=True)), dict(zip(found, actual[1::2], strict=True))
    _check(known.denominators, denominators)
    return StepSums(
        numerators=numerators,
        denominators=known.denominators,
        weights=known.weights,
        counts=known.counts,
        documents=known.documents,
        documents_without_anchor=known.documents_without_anchor,
    )


def _known(
    learner: Learner,
    batches: Sequence[Any],
    sources: Sequence[Source],
    progress: Progress,
    *,
    ranks: Ranks,
    autocast: bool,
) -> StepSums:
    """Everything but the numerators, over all ranks."""
    weights = learner.weights(progress)
    denominators = dict.fromkeys(weights, 0.0)
    anchors = labels = rows = 0
    for batch in batches:
        with _autocast(ranks, autocast):
            for name, value in learner.denominators(batch, progress).items():
                denominators[name] += value
        counts = learner.counts(batch)
        anchors, labels, rows = anchors + counts.anchors, labels + counts.labels, rows + counts.context_rows
    empty = sum(source.anchors.numel() == 0 for source in sources)
    total = ranks.sums([*denominators.values(), anchors, labels, rows, len(sources), empty])
    return StepSums(
        numerators=dict.fromkeys(weights, 0.0),
        denominators=dict(zip(denominators, total, strict=False)),
        weights=weights,
        counts=Counts(anchors=int(total[-5]), labels=int(total[-4]), context_rows=int(total[-3])),
        documents=int(total[-2]),
        documents_without_anchor=int(total[-1]),
    )


def _autocast(ranks: Ranks, enabled: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(ranks.device.type, dtype=torch.bfloat16, enabled=enabled)


def _check(announced: Mapping[str, float], actual: Mapping[str, float]) -> None:
    for name, value in announced.items():
        if not abs(actual[name] - value) <= AGREEMENT * max(abs(value), 1e-9):
            raise WrongDenominator(
                f"loss term {name!r}: expected the denominator {value:g} that the method's `denominators` announced, "
                f"found {actual[name]:g} from its `objective`; make both the same sum"
            )
