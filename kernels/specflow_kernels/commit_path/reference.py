"""The move of accepted rows request by request: what the kernel must equal."""

from __future__ import annotations

from torch import Tensor


def commit_path_reference(cache_LTX: Tensor, start_B: Tensor, path_BP: Tensor) -> None:
    """In place; arguments as in ``commit_path``."""
    for start, path in zip(start_B.tolist(), path_BP.tolist(), strict=True):
        slots = [slot for slot in path if slot >= 0]
        cache_LTX[:, start : start + len(slots)] = cache_LTX[:, [start + slot for slot in slots]].clone()
