"""Which proposals of a chain the target accepts, and the token after them (METHODS 1).

Legend: B requests, M proposals, R >= M + 1 rows judged by the target, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.verify_chain.reference import verify_chain_reference


def verify_chain(
    draft_BM: Tensor,
    target_BRV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BR: Tensor,
    q_BMV: Tensor | None = None,
    judged_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``(accepted_B, next_B)`` int64: leading proposals accepted, and the target's token after them.

    Row i of the target judges proposal i. A greedy request's rows are logits or probabilities, and a proposal stays
    while it is their argmax, the lowest of equals. A sampled request's rows are probabilities p: proposal x stays if
    ``coins[i] * q(x) < p(x)``; after a rejection the token is drawn from ``max(p - q, 0)``, after the last proposal
    from p, by inverting the running sum at ``coins[-1]``. ``coins_BR`` ``[B, M + 1]`` fp32 in [0, 1), independent.
    ``q_BMV`` none: proposals were certain, q(x) is 1. ``judged_B``: how many proposals each request has, of M.

    A request with NaN in a row that it needs, or a proposal that q cannot have given, gets -1 for both. Raises
    ``ValueError`` if shapes do not fit.
    """
    _check(draft_BM, target_BRV, greedy_B, coins_BR, q_BMV, judged_B)
    run = verify_chain_reference
    if explain(
        draft_BM, target_BRV, greedy_B=greedy_B, coins_BR=coins_BR, q_BMV=q_BMV, judged_B=judged_B
    ).kernel:  # fmt: skip
        from specflow_kernels.verify_chain.launching import verify_chain_triton

        run = verify_chain_triton
    return run(draft_BM, target_BRV, greedy_B=greedy_B, coins_BR=coins_BR, q_BMV=q_BMV, judged_B=judged_B)


def explain(
    draft_BM: Tensor,
    target_BRV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BR: Tensor,
    q_BMV: Tensor | None = None,
    judged_B: Tensor | None = None,
) -> Choice:
    """What :func:`verify_chain` would run for these tensors, and why."""
    given = (target_BRV, draft_BM, greedy_B, q_BMV, judged_B)
    choice = choose(t for t in given if t is not None)
    if choice.kernel and coins_BR.device != target_BRV.device:
        return Choice(False, f"the coins are on {coins_BR.device}, the target's rows on {target_BRV.device}")
    return choice


def _check(
    draft: Tensor, target: Tensor, greedy: Tensor, coins: Tensor, q: Tensor | None, judged: Tensor | None
) -> None:
    batch, proposals = draft.shape
    problems = [
        f"{name} {tuple(tensor.shape)}, expected {wanted}"
        for name, tensor, wanted in (
            ("target", target, (batch, max(target.shape[1], proposals + 1), target.shape[2])),
            ("greedy", greedy, (batch,)),
            ("coins", coins, (batch, proposals + 1)),
            ("q", q, (batch, proposals, target.shape[2])),
            ("judged", judged, (batch,)),
        )
        if tensor is not None and tuple(tensor.shape) != wanted
    ]
    if problems:
        raise ValueError(f"drafts {tuple(draft.shape)} do not fit: {'; '.join(problems)}")
