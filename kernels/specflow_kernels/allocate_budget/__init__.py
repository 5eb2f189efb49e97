"""How many rows of each request a round verifies, given how many proposals it can afford (METHODS 6.3).

Legend: B requests, M proposals.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.allocate_budget.reference import allocate_budget_reference
from specflow_kernels.choice import Choice, choose

LARGEST_CHAIN = 64


def allocate_budget(survival_BM: Tensor, budget: Tensor, *, least: float = 1e-6) -> Tensor:
    """``[B]`` int64 rows to verify, the anchor's included: 1 plus how many of its proposals are among the best.

    The order is total: survival descending, position ascending, request ascending, on fp32. ``survival_BM`` does not
    rise along a request, so that what is chosen of it is a prefix. Survivals below ``least``, and NaN, are out.
    ``budget``: integer tensor without dimensions, proposals of all requests together. Raises ``ValueError`` if it has
    dimensions.
    """
    if budget.ndim:
        raise ValueError(f"expected a budget without dimensions, found shape {tuple(budget.shape)}")
    run = allocate_budget_reference
    if explain(survival_BM, budget, least=least).kernel:
        from specflow_kernels.allocate_budget.launching import allocate_budget_triton

        run = allocate_budget_triton
    return run(survival_BM.float(), budget, least=least)


def explain(survival_BM: Tensor, budget: Tensor, *, least: float = 1e-6) -> Choice:
    """What :func:`allocate_budget` would run for these tensors, and why."""
    proposals = survival_BM.shape[1]
    return choose(
        (survival_BM, budget),
        refusals=(
            (proposals > LARGEST_CHAIN, f"{proposals} proposals; the kernel's tiles hold up to {LARGEST_CHAIN}"),
            (proposals == 0, "no proposals"),
        ),
    )
