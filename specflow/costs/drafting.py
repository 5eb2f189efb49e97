"""What a round costs beside the target's pass, by the number of requests that draft in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """Drafting, and feeding committed rows to the drafter: ``per_round`` once, ``per_request`` for each that drafts."""

    per_round: float = 0.0
    per_request: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.per_round < np.inf and 0 <= self.per_request < np.inf):
            raise ValueError(f"{self.per_round} s a round, {self.per_request} s a request: expected at least 0 of each")

    def seconds(self, drafting: int) -> float:
        """Of a round in which ``drafting`` requests draft; nothing where none does."""
        return self.per_round + drafting * self.per_request if drafting else 0.0


def fit_draft_cost(requests: Sequence[int], seconds: Sequence[float]) -> DraftCost:
    """The line through the seconds of rounds of so many requests, neither part below 0; relative errors count."""
    from scipy.optimize import nnls

    scale = 1.0 / np.asarray(seconds, dtype=np.float64)
    design = np.stack((scale, np.asarray(requests, dtype=np.float64) * scale), axis=1)
    if len(set(requests)) < 2:
        design[:, 0] = 0.0  # one number of requests tells nothing of what is shared
    (per_round, per_request), _ = nnls(design, np.ones(len(seconds)))
    return DraftCost(per_round=float(per_round), per_request=float(per_request))
