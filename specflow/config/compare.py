"""``compare``: several drafters and plain decoding, in turn, at the concurrency that users have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from specflow.config.base import Section, wrong
from specflow.config.regenerate import Precision
from specflow.config.sampling import SamplingParams
from specflow.config.scheduler import SchedulerMode
from specflow.config.tree import TreeParams


def _rising(values: tuple[int, ...]) -> tuple[int, ...]:
    if list(values) != sorted(set(values)):
        raise wrong("out of order", found=list(values), expected="different numbers in increasing order")
    return values


Concurrencies = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_rising), Field(min_length=1)]


class CompareParams(Section):
    """Time drafters and plain decoding in turn, and rank."""

    concurrency: Concurrencies = Field(
        default=(1,), description="Requests in flight, one measurement each; the ranking is made for the last."
    )
    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    max_new_tokens: int = Field(default=64, ge=2, description="Longest answer in tokens.")
    sampling: SamplingParams = Field(default=SamplingParams(), description="Sampling of every mode.")
    trees: dict[str, TreeParams] = Field(
        default={}, description="Drafters that are also measured with trees, as `NAME+tree`, and their trees."
    )
    schedulers: dict[str, tuple[SchedulerMode, ...]] = Field(
        default={},
        description="Drafters that are also measured with schedulers, as `NAME+MODE`: `causal`, `lagged`.",
    )
    repeats: int = Field(default=1, ge=1, description="Times each wave of prompts is decoded in each mode.")
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; none: chosen by a probe.")
    """In the key, unlike elsewhere: it changes what is measured."""
