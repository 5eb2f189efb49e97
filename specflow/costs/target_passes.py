"""Passes of the embedded engine: rows behind a committed context, as verification runs them.

Legend: R requests, T rows of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specflow.costs.timing import Split
from specflow.targets.cache import Cache
from specflow.targets.target import Target


class TargetPasses:
    """``contexts``: committed positions of each request; ``layer_ids`` are captured as well.

    A pass of R requests takes the first R (see :mod:`specflow.costs.contexts`). Splits that are not uniform run
    compacted, as a scheduler's do.
    """

    def __init__(
        self,
        target: Target,
        *,
        contexts: Sequence[int],
        most_rows: int,
        layer_ids: tuple[int, ...] = (),
    ) -> None:
        self._target, self._layer_ids = target, layer_ids
        requests, longest = len(contexts), max(contexts)
        self._cache = target.new_cache(requests, longest + most_rows)
        self._ids = torch.arange(requests * most_rows).view(requests, most_rows) * 7919 % target.vocab_size
        first = self._cache.rows(0, 1)
        target.forward(torch.arange(longest)[None] * 104729 % target.vocab_size, first)
        first.commit(longest)
        for row in range(1, requests):
            self._cache.copy(source=0, destination=row, length=contexts[row])
        self._cache.rewind(0, contexts[0])

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
