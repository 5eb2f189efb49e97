"""``bench``: plain and speculative decoding, alternating in one run."""

from __future__ import annotations

from pydantic import Field, model_validator

from specflow.config.base import Section, wrong
from specflow.config.regenerate import Precision
from specflow.config.sampling import SamplingParams
from specflow.config.scheduler import SchedulerParams, refuse_both
from specflow.config.tree import TreeOrAuto


class BenchParams(Section):
    """Time plain and speculative decoding, alternating in one run."""

    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    max_new_tokens: int = Field(default=64, ge=1, description="Longest answer in tokens.")
    sampling: SamplingParams = Field(default=SamplingParams(), description="Sampling of both modes.")
    tree: TreeOrAuto | None = Field(
        default=None,
        description="Propose trees; `auto`: the shape that measured costs and acceptance predict to be fastest; none: "
        "chains.",
    )
    tree_drafters: tuple[str, ...] | None = Field(
        default=None, description="Drafters that propose trees, by name; none: all, and each must be able to."
    )
    scheduler: SchedulerParams | None = Field(
        default=None, description="Verify only proposals that are worth it; in flow `scheduler`; none: all proposals."
    )
    scheduler_drafters: tuple[str, ...] | None = Field(
        default=None, description="Drafters that are scheduled, by name; none: all, and each must have a confidence."
    )
    repeats: int = Field(default=1, ge=1, description="Times each prompt is decoded in each mode.")
    warmup_prompts: int = Field(default=2, ge=0, description="Prompts decoded before the clock starts.")
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    compare_transformers: bool = Field(
        default=True, description="Also time transformers' own `generate` on some of the prompts."
    )
    transformers_prompts: int = Field(default=4, ge=1, description="How many prompts, spread over the kinds.")
    transformers_tokens: int = Field(default=32, ge=2, description="Tokens of each.")
    near_tie: float | None = Field(
        default=None,
        ge=0,
        description="fp32 logit gap up to which a differing token is called a near tie; none: by arithmetic.",
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads; none: chosen by a probe.")
    """In the key, unlike elsewhere: it changes what is measured."""

    @model_validator(mode="after")
    def _one_of_tree_and_scheduler(self) -> BenchParams:
        refuse_both(self.tree, self.scheduler)
        return self

    @model_validator(mode="after")
    def _drawn_proposals_are_chains(self) -> BenchParams:
        if self.tree is not None and self.sampling.draft_temperature:
            raise wrong(
                "proposals that are drawn are chains",
                found=f"a tree, and sampling.draft_temperature {self.sampling.draft_temperature}",
                expected="a tree or draft_temperature above 0, not both",
            )
        return self
