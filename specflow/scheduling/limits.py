"""What every planner of verification keeps to."""

from __future__ import annotations

from dataclasses import dataclass

SURVIVAL_FLOOR = 1e-6
"""Positions less likely than this to be reached are not verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Rows verified per request, the anchor's included; ``longest`` none: all. Raises ``ValueError``."""

    num_proposals: int
    shortest: int = 1
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.num_proposals < 1 or not 1 <= self.shortest <= self.most <= self.num_proposals + 1:
            raise ValueError(
                f"{self.shortest} to {self.most} rows of a request with {self.num_proposals} proposals: expected "
                f"1 <= shortest <= longest <= {self.num_proposals + 1}"
            )

    @property
    def most(self) -> int:
        return self.num_proposals + 1 if self.longest is None else self.longest
