"""The target's features of token documents, with shared prefixes computed once.

Legend: B documents of a pass, T tokens, K captured layers, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specflow.features.plan import Batch
from specflow.targets.base import TargetOutput
from specflow.targets.cache import Cache
from specflow.targets.device import to_host
from specflow.targets.target import Target


class Captured(NamedTuple):
    """Features of one document, all of its rows, bfloat16, in host memory."""

    features_TKH: Tensor
    last_hidden_TH: Tensor

    @property
    def finite(self) -> bool:
        return bool(self.features_TKH.isfinite().all()) and bool(self.last_hidden_TH.isfinite().all())


class Capturer:
    """Runs batches of a plan. Consecutive batches with the same prefix reuse its keys and values.

    Without layers only :meth:`forward` may be used.
    """

    def __init__(
        self,
        target: Target,
        layer_ids: tuple[int, ...],
        documents: Sequence[Sequence[int]] | Mapping[int, Sequence[int]],
    ) -> None:
        self._target = target
        self._layer_ids = layer_ids
        self._documents = documents
        self._cache: Cache | None = None
        self._prefix_ids: list[int] = []
        self._prefix: Captured | None = None

    retried = 0
    """There is nothing to ask again."""

    def close(self) -> None: ...

    def run(self, batch: Batch) -> list[Captured]:
        """Features of the batch's documents, in its order."""
        output = self.forward(batch)
        assert output.features_BTKH is not None
        features_BTKH, last_BTH = to_host(output.features_BTKH.bfloat16(), output.last_hidden_BTH.bfloat16())
        lengths = [len(self._documents[i]) - batch.prefix for i in batch.documents]
        return [
            self._joined(features_BTKH[b, :length], last_BTH[b, :length], prefix=batch.prefix)
            for b, length in enumerate(lengths)
        ]

    def forward(self, batch: Batch) -> TargetOutput:
        """The target's pass over what follows the prefix, padded on the right."""
        ids = [list(self._documents[i]) for i in batch.documents]
        rests = [row[batch.prefix :] for row in ids]
        longest = max(map(len, rests))
        cache = self._prepared(ids[0][: batch.prefix], requests=len(ids), length=batch.prefix + longest)
        ids_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rests])
        # Nothing is committed: the cache stays at the prefix, ready for the next batch.
        return self._target.forward(ids_BT, cache, layer_ids=self._layer_ids)

    def _joined(self, features_TKH: Tensor, last_TH: Tensor, *, prefix: int) -> Captured:
        if not prefix:
            return Captured(features_TKH, last_TH)
        assert self._prefix is not None
        return Captured(
            torch.cat([self._prefix.features_TKH, features_TKH]), torch.cat([self._prefix.last_hidden_TH, last_TH])
        )

    def _prepared(self, prefix_ids: list[int], *, requests: int, length: int) -> Cache:
        """A cache of ``requests`` with the prefix committed in each."""
        cache = self._cache
        if cache is None or requests > cache.batch or length > cache.capacity:
            # Later batches have shorter documents and more of them; room for twice as many saves remaking it.
            cache = self._cache = self._target.new_cache(2 * requests, length)
            self._prefix_ids = []
        if prefix_ids != self._prefix_ids:
            for request in range(cache.batch):
                cache.rewind(request, 0)
            self._prefix_ids = prefix_ids
            self._prefix = self._commit_prefix(cache, prefix_ids) if prefix_ids else None
        for request in range(1, requests):
            if int(cache.committed_B[request]) != len(prefix_ids):
                cache.copy(source=0, destination=request, length=len(prefix_ids))
        return cache.rows(0, requests)

    def _commit_prefix(self, cache: Cache, prefix_ids: list[int]) -> Captured | None:
        first = cache.rows(0, 1)
        output = self._target.forward(torch.tensor([prefix_ids]), first, layer_ids=self._layer_ids)
        first.commit(len(prefix_ids))
        if output.features_BTKH is None:
            return None
        return Captured(*to_host(output.features_BTKH[0].bfloat16(), output.last_hidden_BTH[0].bfloat16()))
