"""``calibrate``: temperatures that make a drafter's confidence true."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from specflow.config.base import NOT_IN_KEY, InputPath, Section
from specflow.config.regenerate import Precision
from specflow.config.sampling import SamplingParams


class CalibrateParams(Section):
    """Fit the temperatures of a drafter's confidence."""

    records: InputPath | None = Field(
        default=None,
        description="Rounds collected elsewhere: a `.jsonl` file, or `.pt` files of SGLang or their directory; none: "
        "held-out prompts are decoded.",
    )
    optional: bool = Field(
        default=False,
        description="A drafter without confidence gets an empty calibration; else that is an error.",
        json_schema_extra=NOT_IN_KEY,
    )
    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    max_new_tokens: int = Field(default=64, ge=2, description="Longest answer in tokens.")
    sampling: SamplingParams = Field(default=SamplingParams(), description="Sampling of the rounds.")
    validation_share: float = Field(
        default=0.5, gt=0, lt=1, description="Share of the rounds, by request, that judges the temperatures."
    )
    min_events: int = Field(
        default=30,
        ge=1,
        description="Fewest rounds accepted up to a position, and fewest rejected there, for a temperature but 1.",
    )
    bootstraps: int = Field(default=200, ge=10, description="Resamples for the interval of a temperature.")
    seed: int = Field(default=0, ge=0, description="Seed of the split and of the resamples.")
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )

    def record_files(self) -> tuple[Path, ...]:
        """The files that ``records`` stands for."""
        if self.records is None:
            return ()
        return tuple(sorted(self.records.glob("*.pt"))) if self.records.is_dir() else (self.records,)
