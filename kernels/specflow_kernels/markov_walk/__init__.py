"""DSpark's sequential head: a low-rank correction of every step's logits by the token before (METHODS 6).

Legend: B requests, M proposals, V vocabulary, r rank.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.markov_walk.reference import markov_walk_reference
from specflow_kernels.markov_walk.walk import Mix, Walk

__all__ = ["Mix", "Walk", "explain", "markov_walk"]


def markov_walk(
    base_BMV: Tensor,
    anchor_B: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
    *,
    greedy_B: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    mix: Mix | None = None,
) -> Walk:
    """From the anchor on: ``logits = base + W2 mix(W1[previous])``, then a token of each request.

    A greedy request takes the largest logit, the lowest id of equals. Another takes the largest of ``logits /
    temperature`` plus Gumbel noise, which is a draw from their softmax. The noise of step i and id v is a function of
    the request's seed and ``i * V + v``, so a draw does not depend on the batch. ``mix`` none: a Markov head without
    gate or state. ``seed_B`` int64, at least 0. No gradient on CUDA. Raises ``ValueError`` if shapes do not fit.
    """
    batch, proposals, vocabulary = base_BMV.shape
    rank = successors_Vr.shape[1]
    wanted = ((batch,), (vocabulary, rank), (vocabulary, rank), (batch,), (batch,), (batch,))
    given = (anchor_B, predecessors_Vr, successors_Vr, greedy_B, temperature_B, seed_B)
    found = tuple(tuple(t.shape) for t in given)
    if found != wanted:
        raise ValueError(f"base {tuple(base_BMV.shape)} and rank {rank} need {wanted}, found {found}")
    if not proposals:
        raise ValueError(f"base {tuple(base_BMV.shape)} has no proposals, expected one at least")
    run = markov_walk_reference
    if explain(
        base_BMV, anchor_B, predecessors_Vr, successors_Vr, greedy_B=greedy_B, temperature_B=temperature_B,
        seed_B=seed_B,
    ).kernel:  # fmt: skip
        from specflow_kernels.markov_walk.launching import markov_walk_triton

        run = markov_walk_triton
    return run(
        base_BMV, anchor_B, predecessors_Vr, successors_Vr, greedy_B=greedy_B, temperature_B=temperature_B,
        seed_B=seed_B, mix=mix,
    )  # fmt: skip


def explain(
    base_BMV: Tensor,
    anchor_B: Tensor,
    predecessors_Vr: Tensor,
    successors_Vr: Tensor,
    *,
    greedy_B: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    mix: Mix | None = None,
) -> Choice:
    """What :func:`markov_walk` would run for these tensors, and why."""
    trained = any(t.requires_grad for t in (base_BMV, predecessors_Vr, successors_Vr))
    return choose(
        (base_BMV, predecessors_Vr, successors_Vr, anchor_B, greedy_B, seed_B),
        refusals=((trained, "a gradient is wanted; the kernel has no backward pass"),),
    )
