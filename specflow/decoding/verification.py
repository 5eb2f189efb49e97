"""Which proposals the target accepts, and the token it adds (METHODS 1).

Legend: B requests, R = m + 1 rows, V vocabulary. Row 0 belongs to the anchor and judges the first proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from specflow_kernels.accept_greedy import accept_greedy
from torch import Tensor

from specflow.decoding.chooser import Chooser, residual
from specflow.decoding.distribution import distribution
from specflow.drafters.base import Proposal


def verify_chains(
    logits_BRV: Tensor, proposals: Sequence[Proposal], choosers: Sequence[Chooser]
) -> list[tuple[int, int]]:
    """``(accepted, next token)`` of every request, each by its own sampling.

    The next token is the target's after the last accepted proposal: correction or bonus.
    """
    found: dict[int, tuple[int, int]] = {}
    greedy = [b for b, chooser in enumerate(choosers) if chooser.sampling.argmax]
    if greedy:
        rows_GRV = logits_BRV if len(greedy) == len(choosers) else logits_BRV[greedy]
        draft_Gm = torch.stack([proposals[b].tokens_m for b in greedy])
        # One transfer for the accepted counts and the next tokens of all of them.
        both = torch.stack(accept_greedy(draft_Gm, rows_GRV.argmax(dim=-1))).tolist()
        found = {b: (accepted, token) for b, accepted, token in zip(greedy, *both, strict=True)}
    for b, chooser in enumerate(choosers):
        if b not in found:
            found[b] = verify_chain(logits_BRV[b], proposals[b], chooser)
    return [found[b] for b in range(len(choosers))]


def verify_chain(logits_RV: Tensor, proposal: Proposal, chooser: Chooser) -> tuple[int, int]:
    """The same for one request by rejection: the output has the distribution of plain decoding, whatever ``q`` is.

    A row is judged after the proposals accepted before it, penalties included. Raises ``ValueError`` if ``q`` is no
    distribution that can have given the proposals.
    """
    sampling, begin = chooser.sampling, chooser.length
    tokens: list[int] = proposal.tokens_m.tolist()
    for i, token in enumerate(tokens):
        p_V = distribution(logits_RV[i], sampling, chooser.after(tokens[:i]))
        q_V = None if proposal.q_mV is None else proposal.q_mV[i]
        q = 1.0 if q_V is None else _checked(q_V, token, i)
        if not chooser.random.accepts(p=float(p_V[token]), q=q, place=(begin, i)):
            return i, chooser.draw_target(residual(p_V, q_V, token), index=begin + i)
    p_V = distribution(logits_RV[len(tokens)], sampling, chooser.after(tokens))
    return len(tokens), chooser.draw_target(p_V, index=begin + len(tokens))


def _checked(q_V: Tensor, token: int, proposal: int) -> float:
    """The probability that ``token`` was drawn with."""
    q, total = float(q_V[token]), float(q_V.sum())
    if not q > 0.0 or abs(total - 1.0) > 1e-4:
        raise ValueError(
            f"proposal {proposal}: q gives token {token} the probability {q} and sums to {total}; expected the "
            "distribution the token was drawn from"
        )
    return q
