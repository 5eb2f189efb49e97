"""The engine's KV cache: one preallocated buffer per layer, committed lengths, no copies per round.

Legend: B requests, N key heads, T rows of a pass, S capacity, D head size.
A pass writes its rows behind the committed ones; :meth:`Cache.commit` makes a prefix of them part of
the request. Rows that are not committed are overwritten by the next pass and never visible to it.
transformers calls :meth:`Cache.update`; nothing else of its cache classes is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specflow.targets.attention import AttentionPass
from specflow.targets.ragged_attention import RaggedPass
from specflow.targets.tree_attention import TreePass


class _Storage:
    """Buffers ``[B, N, S, D]`` per layer, allocated when the first rows tell their shape and dtype."""

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch, self.capacity = batch, capacity
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def ensure(self, layer: int, key: Tensor, value: Tensor) -> None:
        if layer not in self.keys:
            self.keys[layer] = key.new_zeros(self.batch, key.shape[1], self.capacity, key.shape[3])
            self.values[layer] = value.new_zeros(self.batch, value.shape[1], self.capacity, value.shape[3])


class Cache:
    """KV of a batch of requests. ``committed_B`` int64: positions that are part of each request."""

    is_compileable = False

    def __init__(self, batch: int, capacity: int, *, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.committed_B = torch.zeros(batch, dtype=torch.int64)
        self._storage = _Storage(batch, capacity)
        self._first, self._batch = 0, batch
        self._views: dict[int, tuple[Tensor, Tensor]] = {}
        self._pass: AttentionPass | None = None
        self._index: tuple[Tensor, Tensor] | None = None

    @property
    def batch(self) -> int:
        return self._batch

    @property
    def capacity(self) -> int:
        return self._storage.capacity

    def rows(self, first: int, count: int) -> Cache:
        """A cache over requests ``first .. first + count`` that shares this one's buffers and lengths."""
        if not 0 <= first < first + count <= self._batch:
            raise ValueError(f"requests {first}..{first + count} of a cache of {self._batch}")
        view = Cache.__new__(Cache)
        view.device, view._storage = self.device, self._storage
        view.committed_B = self.committed_B[first : first + count]
        view._first, view._batch = self._first + first, count
        view._views, view._pass, view._index = {}, None, None
        return view

    def begin_pass(self, rows: int | Sequence[int], parents_BT: Tensor | None = None) -> AttentionPass:
        """Reserve ``rows`` places behind the committed ones; raises ``ValueError`` if they do not fit.

        ``rows``: of every request, or each request's own, see :class:`RaggedPass`. ``parents_BT`` int64 ``[B, rows]``:
        rows are a tree, see :class:`TreePass`; none: each follows the one before.
        """
        committed = self.committed_B.tolist()
        if not isinstance(rows, int):
            self._pass = RaggedPass(committed, rows, self.device)
        elif parents_BT is None:
            self._pass = AttentionPass(committed, rows, self.device)
        else:
            self._pass = TreePass(committed, parents_BT, self.device)
        if self._pass.length > self.capacity:
            raise ValueError(
                f"{self._pass.rows} rows after {max(committed)} committed positions do not fit a cache of "
                f"{self.capacity}: make it with a larger capacity"
            )
        self._index = None
        if self._pass.start is None:
            self._index = self._pass.places()
        return self._pass

    def commit(self, counts: int | Sequence[int] | Tensor) -> None:
        """Make the first ``counts[b]`` rows of the last pass part of request b; the others vanish."""
        if self._pass is None:
            raise RuntimeError("commit without a pass since the last commit")
        current, self._pass = self._pass, None
        counts_B = torch.as_tensor(counts, dtype=torch.int64, device="cpu")
        if counts_B.ndim and counts_B.shape != self.committed_B.shape:
            raise ValueError(f"counts for {tuple(counts_B.shape)} requests, the cache has {self._batch}")
        low, high = int(counts_B.min()), int(counts_B.max())
        if low < 0 or not current.committable(counts_B):
            rows = current.counts if isinstance(current, RaggedPass) else current.rows
            raise ValueError(f"cannot commit {low}..{high} rows of a pass of {rows}")
        self.committed_B += counts_B

    @torch.inference_mode()
    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Make one path of the last pass part of each request: its rows are moved together, the others vanish.

        ``paths[b]``: rows from the top down, each the parent of the next. Raises ``ValueError`` if they are not.
        """
        current = self._pass
        if current is None:
            raise RuntimeError("commit without a pass since the last commit")
        _check_paths(paths, current, batch=self._batch)
        moved = [(b, to, row) for b, path in enumerate(paths) for to, row in enumerate(path) if to != row]
        if moved:
            request_M, to_M, row_M = torch.tensor(moved, device=self.device).T
            first_M = self.committed_B.to(self.device)[request_M]
            for keys, values in self._views.values():
                for buffer in (keys, values):
                    # Indexing copies before it writes, so that places which are read and written do no harm.
                    buffer[request_M, :, first_M + to_M] = buffer[request_M, :, first_M + row_M]
        self.commit([len(path) for path in paths])

    def rewind(self, request: int, length: int) -> None:
        """Forget everything of ``request`` behind its first ``length`` positions."""
        if not 0 <= length <= int(self.committed_B[request]):
            raise ValueError(f"cannot rewind to {length}: {int(self.committed_B[request])} positions are committed")
        self.committed_B[request] = length
        self._pass = None

    @torch.inference_mode()
    def copy(self, *, source: int, destination: int, length: int) -> None:
        """Make the first ``length`` positions of request ``source`` the whole of ``destination``."""
        if not 0 <= length <= int(self.committed_B[source]):
            raise ValueError(f"cannot copy {length} of {int(self.committed_B[source])} committed positions")
        first = self._first
        for buffers in (self._storage.keys, self._storage.values):
            for buffer in buffers.values():
                buffer[first + destination, :, :length] = buffer[first + source, :, :length]
        self.committed_B[destination] = length
        self._pass = None

    # What transformers calls.

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the pass's ``[B, N, T, D]`` rows; return views of all positions it may see."""
        current = self._pass
        if current is None:
            raise RuntimeError("update outside of a pass: call begin_pass first")
        view = self._views.get(layer_idx)
        if view is None:
            self._storage.ensure(layer_idx, key, value)
            mine = slice(self._first, self._first + self._batch)
            view = (self._storage.keys[layer_idx][mine], self._storage.values[layer_idx][mine])
            self._views[layer_idx] = view
        keys, values = view
        seen_keys, seen_values = keys[:, :, : current.length], values[:, :, : current.length]
        if self._index is None:
            seen_keys[:, :, current.start :] = key
            seen_values[:, :, current.start :] = value
        else:
            requests, positions = self._index
            keys[requests, :, positions] = key.transpose(1, 2)
            values[requests, :, positions] = value.transpose(1, 2)
        return seen_keys, seen_values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.committed_B.max())

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0


def _check_paths(paths: Sequence[Sequence[int]], current: AttentionPass, *, batch: int) -> None:
    parents_BT = (
        current.parents_BT if isinstance(current, TreePass) else torch.arange(-1, current.rows - 1).expand(batch, -1)
    )
    if len(paths) != batch:
        raise ValueError(f"paths of {len(paths)} requests, the cache has {batch}")
    for b, path in enumerate(paths):
        parents = parents_BT[b].tolist()
        if [parents[row] if 0 <= row < current.rows else None for row in path] != [-1, *path[:-1]][: len(path)]:
            raise ValueError(
                f"request {b}: rows {list(path)} are no path of the pass's tree, whose parents are {parents}"
            )
