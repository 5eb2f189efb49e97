"""Ragged rows: those that are verified, one behind the other, and back to where they came from (METHODS 6.3).

Legend: B requests, R rows of each, C rows behind one another, H columns.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.compact_rows.reference import compact_rows_reference, scatter_rows_reference

LARGEST_BATCH = 4096


def compact_rows(rows_BRH: Tensor, lengths_B: Tensor, *, capacity: int) -> tuple[Tensor, Tensor]:
    """``(rows_CH, places_C)``: the first ``lengths_B[b]`` rows of every request, and each one's place ``b * R + r``.

    ``capacity`` C is a size that graphs are captured for: rows behind the last one are zeros at place -1, rows that do
    not fit are left out. ``lengths_B`` int64, at most R. Any dtype. Raises ``ValueError`` if shapes do not fit.
    """
    if tuple(lengths_B.shape) != rows_BRH.shape[:1]:
        raise ValueError(f"rows {tuple(rows_BRH.shape)} need as many lengths, found {tuple(lengths_B.shape)}")
    run = compact_rows_reference
    if explain(rows_BRH, lengths_B, capacity=capacity).kernel:
        from specflow_kernels.compact_rows.launching import compact_rows_triton

        run = compact_rows_triton
    return run(rows_BRH, lengths_B, capacity=capacity)


def scatter_rows(rows_CH: Tensor, lengths_B: Tensor, *, size: int) -> Tensor:
    """``[B, size, H]``: the inverse of :func:`compact_rows`; rows that were not kept are zeros."""
    run = scatter_rows_reference
    if explain_scatter(rows_CH, lengths_B, size=size).kernel:
        from specflow_kernels.compact_rows.launching import scatter_rows_triton

        run = scatter_rows_triton
    return run(rows_CH, lengths_B, size=size)


def explain(rows_BRH: Tensor, lengths_B: Tensor, *, capacity: int) -> Choice:
    """What :func:`compact_rows` would run for these tensors, and why."""
    batch = rows_BRH.shape[0]
    return choose(
        (rows_BRH, lengths_B),
        dtypes=(rows_BRH.dtype,),
        refusals=((batch > LARGEST_BATCH, f"{batch} requests; the kernel's tiles hold up to {LARGEST_BATCH}"),),
    )


def explain_scatter(rows_CH: Tensor, lengths_B: Tensor, *, size: int) -> Choice:
    """What :func:`scatter_rows` would run for these tensors, and why."""
    return choose((rows_CH, lengths_B), dtypes=(rows_CH.dtype,))
