"""``tokenize``: conversations in, token ids and supervised spans out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from specflow.config.base import NOT_IN_KEY, Section, wrong


class TokenizeParams(Section):
    """Turn conversations into token ids and the spans to learn."""

    max_length: int = Field(default=1024, ge=8, description="Longest document in tokens.")
    long_rows: Literal["cut", "window"] = Field(
        default="cut",
        description="What becomes of longer training documents: cut to `max_length`, or shown through windows that "
        "overlap. Held-out documents are always cut.",
    )
    window_overlap: int = Field(
        default=128, ge=1, description="Tokens that a window repeats from the one before, as context without loss."
    )
    supervise: Literal["all_turns", "last_turn"] = Field(
        default="all_turns", description="Assistant turns of a conversation to learn from."
    )
    supervise_tool_calls: bool = Field(default=True, description="Learn the calls of tools, too.")
    thinking: bool | None = Field(
        default=None, description="Thinking mode of rows that declare none; none: the default of the chat template."
    )
    max_skipped: float = Field(
        default=0.05, ge=0.0, le=1.0, description="Largest share of quarantined rows before the stage fails."
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Processes; none: one for each core if there is much to do.",
        json_schema_extra=NOT_IN_KEY,
    )

    @model_validator(mode="after")
    def _windows_advance(self) -> TokenizeParams:
        if self.long_rows == "window" and self.window_overlap >= self.max_length:
            raise wrong(
                "windows would not advance",
                found=f"window_overlap {self.window_overlap}, max_length {self.max_length}",
                expected="a window_overlap below max_length",
            )
        return self
