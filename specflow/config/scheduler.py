"""How many rows of each request are verified, where a stage decodes with a drafter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specflow.config.base import Section, wrong

SchedulerMode = Literal["off", "causal", "lagged"]
SCHEDULER_MODES: tuple[SchedulerMode, ...] = ("off", "causal", "lagged")


class SchedulerParams(Section):
    """Verify only the proposals that are worth their time, by calibrated confidence and measured costs."""

    mode: SchedulerMode = Field(
        default="lagged",
        description="`off`: every proposal; `causal`: by the confidence of the round alone; `lagged`: as many as "
        "earlier rounds suggest, the likeliest of the round.",
    )
    lag: int = Field(default=2, ge=1, description="Rounds after which a confidence may decide how many are verified.")
    evidence: int = Field(
        default=32,
        ge=1,
        description="Rounds of requests that this is decided on, at least; 1: the latest known round of each.",
    )
    explore: float | None = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="Requests draft only where that pays; share of the time in which the others draft too, to see "
        "whether it pays again; none: all requests draft in every round.",
    )
    shortest: int = Field(default=1, ge=1, description="Fewest rows of a request that drafts, the anchor's included.")
    longest: int | None = Field(default=None, ge=1, description="Most rows of a request; none: all.")
    buckets: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None, description="Rows that a pass is rounded up to anyway, increasing: what is paid for is used."
    )

    @model_validator(mode="after")
    def _in_order(self) -> SchedulerParams:
        if self.longest is not None and self.longest < self.shortest:
            raise wrong(
                "no number of rows fits", found=f"shortest {self.shortest}, longest {self.longest}",
                expected="shortest at most longest",
            )  # fmt: skip
        if self.buckets is not None and list(self.buckets) != sorted(set(self.buckets)):
            raise wrong("out of order", found=list(self.buckets), expected="different numbers in increasing order")
        return self


def refuse_both(tree: object | None, scheduler: SchedulerParams | None) -> None:
    """A scheduler grants rows of chains."""
    if tree is not None and scheduler is not None:
        raise wrong("a scheduler grants rows of chains", found="a tree and a scheduler", expected="one of the two")
