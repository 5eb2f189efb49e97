"""``regenerate``: prompts in, the target's own answers out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from specflow.config.base import NOT_IN_KEY, Section, wrong
from specflow.config.inputs import InputParams, PromptSource, weights_problem

Precision = Literal["auto", "fp32", "bf16", "packed"]
"""``packed``: weights stored in fp16, arithmetic in fp32 (fast on CPUs without bf16 units);
``auto``: the fastest on this machine by a short measurement."""


class RegenerateParams(Section):
    """Let the target answer every prompt, to learn from its words."""

    train: tuple[PromptSource, ...] = Field(min_length=1, description="Prompts to train on.")
    heldout: tuple[PromptSource, ...] = Field(min_length=1, description="Prompts to measure on, never trained on.")
    inputs: InputParams = Field(default=InputParams(), description="Which of their rows are used.")
    max_new_tokens: int = Field(default=128, ge=1, description="Longest answer in tokens.")
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy.")
    seed: int = Field(default=0, description="Seed of sampling; each row has its own stream derived from it.")
    batch_size: int = Field(default=32, ge=1, description="Prompts decoded together.")
    max_skipped: float = Field(
        default=0.05, ge=0.0, le=1.0, description="Largest share of quarantined prompts before the stage fails."
    )
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )

    @field_validator("train", "heldout")
    @classmethod
    def _weighted_together(cls, sources: tuple[PromptSource, ...]) -> tuple[PromptSource, ...]:
        problem = weights_problem(sources)
        if problem:
            raise wrong("weights are relative to each other", found=problem, expected="a weight for every source")
        return sources
