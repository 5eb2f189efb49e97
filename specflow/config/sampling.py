"""How tokens are chosen where a stage decodes."""

from __future__ import annotations

from pydantic import Field, model_validator

from specflow.config.base import Section, wrong


class SamplingParams(Section):
    """How the next token is chosen; the order of filters is in docs/engine.md."""

    temperature: float = Field(default=0.0, ge=0, description="0 is greedy.")
    top_k: int | None = Field(default=None, ge=1, description="Most probable tokens that may be drawn; none: all.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Smallest set of tokens with this probability.")
    min_p: float = Field(default=0.0, ge=0, le=1, description="Least probability, as a share of the likeliest token's.")
    presence_penalty: float = Field(default=0.0, description="Off the logit of every token of the answer so far.")
    frequency_penalty: float = Field(default=0.0, description="The same, times how often it occurred.")
    repetition_penalty: float = Field(
        default=1.0, gt=0, description="Divides positive logits of tokens of the answer so far, multiplies negative."
    )
    draft_temperature: float = Field(
        default=0.0,
        ge=0,
        description="0: proposals are the drafter's likeliest tokens; else they are drawn. Changes speed only.",
    )
    seed: int = Field(default=0, description="Each prompt has its own stream derived from it.")

    @model_validator(mode="after")
    def _filters_of_nothing(self) -> SamplingParams:
        neutral = {"top_k": None, "top_p": 1.0, "min_p": 0.0, "draft_temperature": 0.0}
        idle = [name for name, value in neutral.items() if getattr(self, name) != value]
        if self.temperature == 0 and idle:
            raise wrong("nothing is sampled at temperature 0", found=", ".join(idle), expected="a temperature above 0")
        return self
