"""``retrain``: where new prompts come from, and how they become slices that are made once. In flow ``retrain``."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from specflow.config.base import Section, wrong
from specflow.config.inputs import PromptSource


class RetrainParams(Section):
    """New prompts, cut into slices."""

    source: PromptSource | None = Field(
        default=None,
        description="File of JSON lines that only ever grows; none: only the prompts of `regenerate`.",
    )
    slice_rows: int = Field(
        default=256, ge=2, description="Rows of the source that are one slice; a rest waits until it is one."
    )
    heldout_share: float = Field(
        default=0.1, gt=0, lt=1, description="Share of each slice that is held out, at least one row."
    )
    newest: int | None = Field(default=None, ge=1, description="Use only the newest slices, this many; none: all.")
    calibrate: bool | None = Field(
        default=None,
        description="Also calibrate confidence and measure costs; none: where a drafter's method has a confidence.",
    )

    @model_validator(mode="after")
    def _lines_of_a_file(self) -> Self:
        source = self.source
        if source is None:
            return self
        expected = "the `path` of a file of JSON lines, without `limit` and `weight`"
        if source.path is None or source.path.suffix in (".parquet", ".json") or source.path.is_dir():
            raise wrong("only lines can be cut into slices", found=source.place, expected=expected)
        if source.limit is not None or source.weight is not None:
            raise wrong("slices are used whole", found="limit" if source.limit else "weight", expected=expected)
        return self
