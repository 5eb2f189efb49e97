"""Passes of the embedded engine: rows behind a committed context, as verification runs them.

Legend: R requests, T rows of each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specflow.costs.timing import Split
from specflow.targets.cache import Cache
from specflow.targets.target import Target


class TargetPasses:
    """``context`` committed positions in each of ``most_requests`` requests; ``layer_ids`` are captured as well.

    Splits that are not uniform run compacted, as a scheduler's do.
    """

    def __init__(
        self,
        target: Target,
        *,
        context: int,
        most_requests: int,
        most_rows: int,
        layer_ids: tuple[int, ...] = (),
    ) -> None:
        self._target, self._layer_ids = target, layer_ids
        self._cache = target.new_cache(most_requests, context + most_rows)
        self._ids = torch.arange(most_requests * most_rows).view(most_requests, most_rows) * 7919 % target.vocab_size
        prompt = torch.arange(context)[None] * 104729 % target.vocab_size
        first = self._cache.rows(0, 1)
        target.forward(prompt, first)
        first.commit(context)
        for row in range(1, most_requests):
            self._cache.copy(source=0, destination=row, length=context)

    def prepare(self, split: Split) -> Callable[[], object]:
        requests, rows = len(split), max(split)
        cache = self._cache.rows(0, requests)
        if len(set(split)) == 1:
            ids_RT = self._ids[:requests, :rows].contiguous()
            return lambda: self._run(ids_RT, cache)
        ids_1N = torch.cat([self._ids[r, :count] for r, count in enumerate(split)]).unsqueeze(0)
        return lambda: self._run(ids_1N, cache, rows=split)

    def _run(self, ids: Tensor, cache: Cache, *, rows: Split | None = None) -> Tensor:
        """Logits of all rows; commits nothing."""
        output = self._target.forward(ids, cache, layer_ids=self._layer_ids, rows=rows)
        return self._target.head(output.last_hidden_BTH)
