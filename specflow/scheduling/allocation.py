"""Which positions are verified: the likeliest of all requests by the confidence of this round.

Survival never rises along a request and ties go to the earlier position, so what is taken of a request is a prefix.
No token id takes part, and a position is decided by nothing that comes after it in its own request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specflow.costs.buckets import Buckets
from specflow.costs.tables import CostTable
from specflow.scheduling.budget import throughput
from specflow.scheduling.limits import SURVIVAL_FLOOR, Limits

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def order_of(survival_RM: Floats) -> Counts:
    """Flat indices of what may be verified: survival descending, then position ascending, then request ascending."""
    requests, positions = survival_RM.shape
    # Position by position, so that a stable sort leaves ties in the order of position, then request.
    by_position = survival_RM.T.reshape(-1)
    order = np.argsort(-by_position, kind="stable")
    position, request = np.divmod(order[by_position[order] >= SURVIVAL_FLOOR], requests)
    chosen: Counts = request * positions + position
    return chosen


def allocate(survival_RM: Floats, budget: int, limits: Limits) -> Counts:
    """``[R]`` rows to verify of each request, the anchor's included, with ``budget`` positions over all."""
    return _lengths(order_of(survival_RM)[: max(budget, 0)], survival_RM, limits)


def causal_lengths(survival_RM: Floats, cost: CostTable, limits: Limits, buckets: Buckets | None = None) -> Counts:
    """``[R]`` rows by current survival alone: admitted in order while the expected tokens per second strictly grow.

    It stops at the first that brings no more: looking on would let a later position decide about an earlier one. With
    ``buckets`` those next in order fill the pass that is computed anyway; where it stopped is known before them.
    """
    order = order_of(survival_RM)
    found, _ = throughput(survival_RM.reshape(-1)[order], len(survival_RM), cost)
    falls = np.flatnonzero(found[1:] <= found[:-1])
    admitted = int(falls[0]) if falls.size else len(order)
    if buckets is not None:
        admitted = buckets.filled(admitted, requests=len(survival_RM), most=len(order))
    return _lengths(order[:admitted], survival_RM, limits)


def _lengths(chosen: Counts, survival_RM: Floats, limits: Limits) -> Counts:
    requests, positions = survival_RM.shape
    taken = np.bincount(chosen // positions, minlength=requests)
    return np.clip(1 + taken, limits.shortest, limits.most).astype(np.int64)
