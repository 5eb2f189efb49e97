"""What drafting costs in a round of this engine, timed with its own rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specflow.costs.drafting import DraftCost, fit_draft_cost
from specflow.decoding.records import Generation
from specflow.decoding.speculative import decode_speculative_batch
from specflow.drafters.base import Proposer
from specflow.targets.target import Target

REQUESTS = (1, 4)
"""Numbers of requests that draft side by side."""
TOKENS = 24


def time_drafting(target: Target, proposer: Proposer, prompt: Sequence[int]) -> DraftCost:
    """Of rounds of one request, and of several alike side by side."""
    seconds = []
    for count in REQUESTS:
        found = decode_speculative_batch(target, proposer, [prompt] * count, max_new_tokens=TOKENS, batch_size=count)
        seconds.append(seconds_of_a_round(found))
    return fit_draft_cost(REQUESTS, seconds)


def seconds_of_a_round(generations: Sequence[Generation]) -> float:
    """Median over rounds of the drafting of all requests, which ran side by side from their first round on."""
    together = zip(*(generation.rounds for generation in generations), strict=False)
    spent = [sum(r.draft_seconds + r.state_seconds for r in rounds) for rounds in together]
    if not spent:
        raise ValueError("no round to time drafting with: expected prompts whose answers have more than one token")
    return float(np.median(spent))
