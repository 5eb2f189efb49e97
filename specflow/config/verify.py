"""``verify``: proofs that the exported drafter is the trained one and changes no output."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specflow.config.base import NOT_IN_KEY, Section
from specflow.config.regenerate import Precision
from specflow.config.scheduler import SchedulerParams, refuse_both
from specflow.config.tree import TreeParams


class LosslessParams(Section):
    """Test whether sampled answers with the drafter have the distribution of the target's own."""

    enabled: bool = Field(default=False, description="Draw many answers with the drafter and test their distribution.")
    samples: int = Field(
        default=1000, ge=0, description="Answers drawn with each sampling setting, from a few tokens; 0: none."
    )
    alphabet: int = Field(
        default=24, ge=2, description="Tokens that may be drawn, the likeliest ones; all others are excluded."
    )
    answer_tokens: int = Field(default=3, ge=2, description="Tokens of each answer.")
    prompts: int = Field(
        default=4,
        ge=1,
        description="Held-out prompts that are continued with all tokens allowed, the shortest ones of each kind.",
    )
    continuations: int = Field(
        default=4, ge=0, description="Continuations of each of them with each sampling setting; 0: none."
    )
    continuation_tokens: int = Field(default=24, ge=2, description="Tokens of each continuation, at most.")
    classes: int = Field(
        default=8, ge=2, description="Classes of equal probability in which the tokens of continuations are counted."
    )
    temperatures: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(0.5, 1.0, 1.5),
        min_length=1,
        description="Each is tested with all tokens, top-k, top-p and min-p.",
    )
    significance: float = Field(
        default=1e-3, gt=0, lt=0.5, description="Chance that a correct drafter fails, all settings together."
    )
    seed: int = Field(default=0, description="Seed of the answers.")


class VerifyParams(Section):
    """Prove that the exported drafter changes no output."""

    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    max_new_tokens: int = Field(default=64, ge=1, description="Longest answer in tokens.")
    precision: Precision = Field(default="fp32", description="Arithmetic for the equality of outputs.")
    near_tie: float | None = Field(
        default=None,
        ge=0,
        description="Largest fp32 logit gap at a differing token that counts as a tie; none: by arithmetic, 0 in fp32.",
    )
    documents: int = Field(
        default=8, ge=1, description="Stored held-out documents for the checks of export, training and alignment."
    )
    anchors_per_document: int = Field(default=8, ge=1, description="Blocks compared in each of them.")
    batch_size: int = Field(default=8, ge=1, description="Prompts of plain decoding run together.")
    tree: TreeParams | None = Field(default=None, description="Decode with trees of this shape; none: with chains.")
    tree_drafters: tuple[str, ...] | None = Field(
        default=None, description="Drafters that propose trees, by name; none: all, and each must be able to."
    )
    scheduler: SchedulerParams | None = Field(
        default=None, description="Verify only proposals that are worth it; in flow `scheduler`; none: all proposals."
    )
    scheduler_drafters: tuple[str, ...] | None = Field(
        default=None, description="Drafters that are scheduled, by name; none: all, and each must have a confidence."
    )
    lossless: LosslessParams = Field(
        default=LosslessParams(), description="Certificate that sampling is not changed by the drafter."
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )

    @model_validator(mode="after")
    def _one_of_tree_and_scheduler(self) -> VerifyParams:
        refuse_both(self.tree, self.scheduler)
        return self
