"""``regenerate``: prompts in, the target's own answers out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.base import NOT_IN_KEY, InputFile, Section

Precision = Literal["auto", "fp32", "bf16", "packed"]
"""``packed``: weights stored in fp16, arithmetic in fp32 (fast on CPUs without bf16 units);
``auto``: the fastest on this machine by a short measurement."""


class PromptSource(Section):
    """A file of prompts of one kind."""

    path: InputFile = Field(description="JSON lines in `messages` form; relative to the configuration file.")
    kind: str = Field(min_length=1, description="Name of this kind of prompt in every report, for example `service`.")
    limit: int | None = Field(default=None, ge=1, description="Use only the first rows of the file.")


class RegenerateParams(Section):
    """Let the target answer every prompt, to learn from its words."""

    train: tuple[PromptSource, ...] = Field(min_length=1, description="Prompts to train on.")
    heldout: tuple[PromptSource, ...] = Field(min_length=1, description="Prompts to measure on, never trained on.")
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
