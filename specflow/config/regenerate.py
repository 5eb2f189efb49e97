"""``regenerate``: prompts in, the target's own answers out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from specflow.config.base import NOT_IN_KEY, Section, wrong
from specflow.config.inputs import InputParams, PromptSource, weights_problem
from specflow.config.server import ServerParams

Precision = Literal["auto", "fp32", "bf16", "packed"]
"""``packed``: weights stored in fp16, arithmetic in fp32 (fast on CPUs without bf16 units);
``auto``: the fastest on this machine by a short measurement."""


def plain_values(arguments: dict[str, Any]) -> dict[str, Any]:
    """Validator: a template's arguments go to a server as JSON and into the key, so they are plain values."""
    odd = sorted(name for name, value in arguments.items() if not isinstance(value, str | int | float | bool))
    if odd:
        raise wrong("arguments that are not plain", found=odd, expected="text, numbers, true or false")
    return arguments


class RegenerateParams(Section):
    """Let the target answer every prompt, to learn from its words."""

    train: tuple[PromptSource, ...] = Field(min_length=1, description="Prompts to train on.")
    heldout: tuple[PromptSource, ...] = Field(min_length=1, description="Prompts to measure on, never trained on.")
    inputs: InputParams = Field(default=InputParams(), description="Which of their rows are used.")
    max_new_tokens: int = Field(default=128, ge=1, description="Longest answer in tokens.")
    turns: Literal["last", "all"] = Field(
        default="last",
        description="`last`: only the last answer is the target's; `all`: every assistant turn is replaced, in order.",
    )
    length_limited: Literal["keep", "drop"] = Field(
        default="keep", description="What becomes of answers that ended by max_new_tokens; kept ones are marked."
    )
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy; `train` needs it.")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Nucleus sampling; only with a temperature.")
    top_k: int | None = Field(default=None, ge=1, description="Top-k sampling; only with a temperature.")
    seed: int = Field(default=0, description="Seed of sampling; each row has its own stream derived from it.")
    thinking: bool | None = Field(
        default=None,
        description="Whether the target thinks before it answers, where a prompt does not say; none: as the template.",
    )
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(plain_values)] = Field(
        default={}, description="Further arguments of the chat template, for example {reasoning_effort: low}."
    )
    engine: Literal["embedded", "openai"] = Field(
        default="embedded", description="`embedded`: the target in this process; `openai`: the server below."
    )
    server: ServerParams = Field(default=ServerParams(), description="The server of engine `openai`.")
    batch_size: int = Field(default=32, ge=1, description="Prompts decoded together by the embedded engine.")
    max_skipped: float = Field(
        default=0.05,
        ge=0.0,
        le=1.0,
        description="Largest share of unusable rows of the input, and of rows asked that get no usable answer, before "
        "the stage fails.",
        # It decides whether there is an artifact, not what is in it: raised after a failure, the journal is there.
        json_schema_extra=NOT_IN_KEY,
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
