"""DFlash 2's candidate selector: scores of all pairs of neighbouring candidates, and the walk over them (METHODS 7).

Legend: N blocks, M proposals, K candidates of each, r rank, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.selector.reference import selector_lattice_reference, selector_walk_reference

LARGEST_K = 128


def selector_lattice(
    unary_NMK: Tensor,
    candidates_NMK: Tensor,
    anchor_N: Tensor,
    hidden_NMr: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
) -> Tensor:
    """``[N, M, K, K]`` fp32: ``unary(b) + sum over r of A(a) * hidden * B(b)`` for predecessor a and candidate b.

    Predecessors are the candidates of the proposal before; the first proposal's are the anchor, K times. A and B are
    rows of the two codebooks. No gradient on CUDA. Raises ``ValueError`` if shapes do not fit.
    """
    count, proposals, kept = candidates_NMK.shape
    rank = hidden_NMr.shape[2]
    wanted = ((count, proposals, kept), (count,), (count, proposals, rank), (rank,), (rank,))
    found = tuple(
        tuple(s)
        for s in (
            unary_NMK.shape, anchor_N.shape, hidden_NMr.shape, predecessors_Vr.shape[1:], successors_Vr.shape[1:],
        )
    )  # fmt: skip
    if found != wanted:
        raise ValueError(f"candidates {tuple(candidates_NMK.shape)} and rank {rank} need {wanted}, found {found}")
    given = (unary_NMK, candidates_NMK, anchor_N, hidden_NMr, predecessors_Vr, successors_Vr)
    run = selector_lattice_reference
    if explain_lattice(*given).kernel:
        from specflow_kernels.selector.launching import selector_lattice_triton

        run = selector_lattice_triton
    return run(*given)


def selector_walk(
    lattice_NMKK: Tensor, candidates_NMK: Tensor, *, greedy_N: Tensor, temperature_N: Tensor, coins_NM: Tensor
) -> tuple[Tensor, Tensor]:
    """``(tokens_NM, q_NMK)``: from the anchor on, each candidate by the scores after the one chosen before.

    A greedy block takes the largest score, the first of equals, and its q is one-hot. Another draws from
    ``softmax(scores / temperature)`` by inverting the running sum at its coin in [0, 1); q is that softmax. A block
    that meets NaN gets tokens -1 and q 0. Raises ``ValueError`` if shapes do not fit.
    """
    count, proposals, kept = candidates_NMK.shape
    wanted = ((count, proposals, kept, kept), (count,), (count,), (count, proposals))
    found = tuple(tuple(t.shape) for t in (lattice_NMKK, greedy_N, temperature_N, coins_NM))
    if found != wanted:
        raise ValueError(f"candidates {tuple(candidates_NMK.shape)} need {wanted}, found {found}")
    run = selector_walk_reference
    if explain_walk(
        lattice_NMKK, candidates_NMK, greedy_N=greedy_N, temperature_N=temperature_N, coins_NM=coins_NM
    ).kernel:  # fmt: skip
        from specflow_kernels.selector.launching import selector_walk_triton

        run = selector_walk_triton
    return run(
        lattice_NMKK, candidates_NMK, greedy_N=greedy_N, temperature_N=temperature_N, coins_NM=coins_NM
    )  # fmt: skip


def explain_lattice(
    unary_NMK: Tensor,
    candidates_NMK: Tensor,
    anchor_N: Tensor,
    hidden_NMr: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
) -> Choice:
    """What :func:`selector_lattice` would run for these tensors, and why."""
    kept = candidates_NMK.shape[2]
    trained = any(t.requires_grad for t in (unary_NMK, hidden_NMr, predecessors_Vr, successors_Vr))
    choice = choose(
        (hidden_NMr, predecessors_Vr, successors_Vr, candidates_NMK, anchor_N),
        refusals=(
            (kept > LARGEST_K, f"{kept} candidates; the kernel's tiles hold up to {LARGEST_K}"),
            (trained, "a gradient is wanted; the kernel has no backward pass"),
        ),
    )
    if choice.kernel and unary_NMK.device != hidden_NMr.device:
        return Choice(False, f"unary scores are on {unary_NMK.device}, hidden rows on {hidden_NMr.device}")
    return choice


def explain_walk(
    lattice_NMKK: Tensor, candidates_NMK: Tensor, *, greedy_N: Tensor, temperature_N: Tensor, coins_NM: Tensor
) -> Choice:
    """What :func:`selector_walk` would run for these tensors, and why."""
    kept = candidates_NMK.shape[2]
    return choose(
        (lattice_NMKK, candidates_NMK, greedy_N, temperature_N, coins_NM),
        refusals=((kept > LARGEST_K, f"{kept} candidates; the kernel's tiles hold up to {LARGEST_K}"),),
    )
