"""The Triton kernel behind ``commit_path``."""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.commit_path.kernels import commit_kernel
from specflow_kernels.launching import launch, power_of_two

TILE = 1024


def commit_path_triton(cache_LTX: Tensor, start_B: Tensor, path_BP: Tensor) -> None:
    """Same as the reference, for all layers in one launch."""
    layers, _, width = cache_LTX.shape
    path = path_BP.contiguous()
    tile = min(TILE, power_of_two(width, least=16))
    launch(
        commit_kernel, (layers, path.shape[0], -(-width // tile)), cache_LTX, start_B.contiguous(), path,
        cache_LTX.stride(0), path.shape[1], width, BLOCK=tile,
    )  # fmt: skip
