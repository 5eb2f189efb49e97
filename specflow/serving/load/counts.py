"""Tau, acceptance by position and the six lengths, from the server's raw counters.

Sums over all answers are divided once: never an average of the averages that a server states.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest

from specflow.config.load_result import Lengths, Positions
from specflow.decoding.metrics import Ratio
from specflow.serving.load.samples import Counters, Sample
from specflow.serving.load.spread import by_prompt, first_over_second, ratio_interval


def tau_of(samples: Sequence[Sample], *, seed: int) -> tuple[float | None, float | None, float | None]:
    """Delivered tokens per round with its 95 % interval; the first token of an answer belongs to no round.

    None where an answer has no count of rounds, or none ran.
    """
    rows = [(s.id, (s.counters.tokens - 1, s.counters.rounds or 0)) for s in samples]
    sums = by_prompt(rows)
    if not counted(samples) or not sums[:, 1].sum():
        return None, None, None
    return (float(first_over_second(sums.sum(0))), *ratio_interval(sums, first_over_second, seed=seed))


def counted(samples: Sequence[Sample]) -> bool:
    """Whether the server counts rounds; an answer of one token has none."""
    return any(s.counters.rounds for s in samples) and all(
        s.counters.rounds is not None or s.counters.tokens <= 1 for s in samples
    )


def histogram(counters: Sequence[Counters]) -> tuple[int, ...]:
    """Rounds by accepted proposals, of all answers."""
    return tuple(sum(column) for column in zip_longest(*(c.accepted or () for c in counters), fillvalue=0))


def positions(accepted: Sequence[int], *, num_proposals: int | None) -> Positions | None:
    """From rounds by accepted proposals; every round of a chain proposes the same number. None without rounds."""
    rounds = sum(accepted)
    if not rounds:
        return None
    longest = max(len(accepted) - 1, num_proposals or 0)
    at_least = [sum(accepted[j:]) for j in range(longest + 1)]
    return Positions(
        cumulative=[n / rounds for n in at_least[1:]],
        conditional=[Ratio(n, before).value for before, n in pairwise(at_least)],
        accepted=at_least[1:],
        judged=[rounds] * longest,
    )


def lengths(samples: Sequence[Sample], *, block_size: int | None, num_proposals: int | None) -> Lengths | None:
    """None where the server counts no rounds."""
    counters = [s.counters for s in samples if s.counters.rounds]
    rounds = sum(c.rounds or 0 for c in counters)
    if not rounds:
        return None
    found = histogram(counters)
    accepted = sum(r * n for r, n in enumerate(found)) / rounds if sum(found) == rounds else None
    proposed = [c.proposed for c in counters]
    verified = None if None in proposed else 1 + sum(p or 0 for p in proposed) / rounds
    # Without a scheduler's cut, what is accepted is committed, and the anchor with it.
    uncut = all(c.cut is None for c in counters)
    return Lengths(
        block_size=block_size,
        num_proposals=num_proposals,
        verify_len=verified if uncut else _mean_cut(counters, rounds),
        accept_len=accepted if uncut else None,
        cap_trim=0.0 if uncut else None,
        commit_len=None if accepted is None else 1 + accepted,
    )


def _mean_cut(counters: Sequence[Counters], rounds: int) -> float | None:
    cut = tuple(sum(column) for column in zip_longest(*(c.cut or () for c in counters), fillvalue=0))
    return sum(n * rows for rows, n in enumerate(cut)) / rounds if sum(cut) == rounds else None
