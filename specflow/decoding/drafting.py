"""Drafting of the requests of a round: what they can share is computed together."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from specflow.drafters.base import Proposer


def look_ahead(proposers: Sequence[Proposer], anchors: Sequence[int]) -> float:
    """Have forks of one proposer compute together what each reads to propose after its anchor; seconds per request.

    Nothing is done for a request alone, or by a proposer that cannot.
    """
    # Of the class: one that stands in for another and passes on what it is asked cannot do it for several.
    method: Any = type(proposers[0])
    if len(proposers) < 2 or not hasattr(method, "look_ahead"):
        return 0.0
    begin = perf_counter()
    method.look_ahead(proposers, anchors)
    return (perf_counter() - begin) / len(proposers)
