"""The accepted path of a tree moves to the front of its rows in the cache (METHODS 3).

Legend: L layers (keys and values may be two), T rows of the cache, X columns of a row, B requests, P places of a path.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.commit_path.reference import commit_path_reference


def commit_path(cache_LTX: Tensor, start_B: Tensor, path_BP: Tensor) -> None:
    """Row ``start + path[i]`` becomes row ``start + i``, in place, for every request and layer.

    ``path_BP``: rising slots from the anchor's 0 on, filled up with -1, as ``verify_tree`` gives them. Requests' rows
    do not overlap. What lies behind a path's last row is left as it is. Any dtype; rows are contiguous. Raises
    ``ValueError`` if shapes do not fit.
    """
    problems = []
    if cache_LTX.shape[0] and not cache_LTX[0].is_contiguous():
        problems.append(f"rows with strides {cache_LTX.stride()}, expected each layer to be contiguous")
    if tuple(start_B.shape) != path_BP.shape[:1]:
        problems.append(f"{tuple(start_B.shape)} starts for paths {tuple(path_BP.shape)}, expected one each")
    if problems:
        raise ValueError(f"cache {tuple(cache_LTX.shape)} does not fit: {'; '.join(problems)}")
    run = commit_path_reference
    if explain(cache_LTX, start_B, path_BP).kernel:
        from specflow_kernels.commit_path.launching import commit_path_triton

        run = commit_path_triton
    run(cache_LTX, start_B, path_BP)


def explain(cache_LTX: Tensor, start_B: Tensor, path_BP: Tensor) -> Choice:
    """What :func:`commit_path` would run for these tensors, and why."""
    return choose((cache_LTX, start_B, path_BP), dtypes=(cache_LTX.dtype,))
