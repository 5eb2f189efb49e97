"""Which path of a tree of proposals the target accepts, and the token after it (METHODS 1 and 3).

Legend: B requests, D slots of a tree with the anchor's at 0, L = depth + 1 places of a path, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.verify_tree.reference import verify_tree_reference


def verify_tree(
    tokens_BD: Tensor,
    child_BD: Tensor,
    sibling_BD: Tensor,
    target_BDV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BD: Tensor,
    depth: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(path_BL, accepted_B, next_B)`` int64: slots from the anchor on, then -1; proposals; the token after.

    ``child_BD`` is a slot's first child, ``sibling_BD`` its next sibling, -1 for none; siblings' tokens are distinct.
    Row i of the target judges the children of slot i: logits or probabilities of a greedy request, which goes to the
    child that is the argmax; probabilities p of a sampled one. That goes to the first child at which the sum of p over
    the children so far exceeds ``coins[slot]``; without one the token is drawn from p without the children, by
    inverting the running sum at ``coins[-1]``. So every token has the probability that p gives it. ``coins_BD``
    ``[B, D + 1]`` fp32 in [0, 1), independent. No path is longer than ``depth`` proposals.

    A request with NaN on its path gets -1 everywhere. Raises ``ValueError`` if shapes do not fit.
    """
    _check(tokens_BD, child_BD, sibling_BD, target_BDV, greedy_B, coins_BD, depth)
    run = verify_tree_reference
    given = (tokens_BD, child_BD, sibling_BD, target_BDV)
    if explain(*given, greedy_B=greedy_B, coins_BD=coins_BD, depth=depth).kernel:
        from specflow_kernels.verify_tree.launching import verify_tree_triton

        run = verify_tree_triton
    return run(*given, greedy_B=greedy_B, coins_BD=coins_BD, depth=depth)


def explain(
    tokens_BD: Tensor,
    child_BD: Tensor,
    sibling_BD: Tensor,
    target_BDV: Tensor,
    *,
    greedy_B: Tensor,
    coins_BD: Tensor,
    depth: int,
) -> Choice:
    """What :func:`verify_tree` would run for these tensors, and why."""
    choice = choose((target_BDV, tokens_BD, child_BD, sibling_BD, greedy_B))
    if choice.kernel and coins_BD.device != target_BDV.device:
        return Choice(False, f"the coins are on {coins_BD.device}, the target's rows on {target_BDV.device}")
    return choice


def _check(
    tokens: Tensor, child: Tensor, sibling: Tensor, target: Tensor, greedy: Tensor, coins: Tensor, depth: int
) -> None:
    batch, slots = tokens.shape
    problems = [
        f"{name} {tuple(tensor.shape)}, expected {wanted}"
        for name, tensor, wanted in (
            ("child", child, (batch, slots)),
            ("sibling", sibling, (batch, slots)),
            ("target", target, (batch, slots, target.shape[-1])),
            ("greedy", greedy, (batch,)),
            ("coins", coins, (batch, slots + 1)),
        )
        if tuple(tensor.shape) != wanted
    ]
    if depth < 0:
        problems.append(f"depth {depth}, expected at least 0")
    if problems:
        raise ValueError(f"tokens {tuple(tokens.shape)} do not fit: {'; '.join(problems)}")
