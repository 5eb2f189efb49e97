"""Passes of the embedded engine: rows behind a committed context, as verification runs them.

Legend: R requests, T rows of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specflow.costs.timing import Split
from specflow.targets.cache import Cache
from specflow.targets.target import Target


class Ragged(Protocol):
    """A pass whose requests have different numbers of rows, compacted: no row of padding is computed."""

    def __call__(self, ids: Sequence[Tensor], cache: Cache) -> Tensor:
        """Logits ``[sum of rows, V]`` of ``ids``, one tensor per request; commits nothing."""
        ...


class TargetPasses:
    """``context`` committed positions in each of ``most_requests`` requests; ``layer_ids`` are captured as well.

    Splits that are not uniform need ``ragged``.
    """

    def __init__(
        self,
        target: Target,
        *,
        context: int,
        most_requests: int,
        most_rows: int,
        layer_ids: tuple[int, ...] = (),
        ragged: Ragged | None = None,
    ) -> None:
        self._target, self._layer_ids, self._ragged = target, layer_ids, ragged
        self._cache = target.new_cache(most_requests, context + most_rows)
        self._ids = torch.arange(most_requests * most_rows).view(most_requests, most_rows) * 7919 % target.vocab_size
        prompt = torch.arange(context)[None] * 104729 % target.vocab_size
        first = self._cache.rows(0, 1)
        target.forward(prompt, first)
        first.commit(context)
        for row in range(1, most_requests):
            self._cache.copy(source=0, destination=row, length=context)

    def prepare(self, split: Split) -> Callable[[], object]:
        """Raises ``ValueError`` on a split that the engine cannot run."""
        requests, rows = len(split), max(split)
        cache = self._cache.rows(0, requests)
        if len(set(split)) == 1:
            ids_RT = self._ids[:requests, :rows].contiguous()
            return lambda: self._uniform(ids_RT, cache)
        if self._ragged is None:
            raise ValueError(f"rows {split}: this engine runs the same number of rows for every request")
        ragged, ids = self._ragged, [self._ids[r, :n] for r, n in enumerate(split)]
        return lambda: ragged(ids, cache)

    def _uniform(self, ids_RT: Tensor, cache: Cache) -> Tensor:
        output = self._target.forward(ids_RT, cache, layer_ids=self._layer_ids)
        return self._target.head(output.last_hidden_BTH)
