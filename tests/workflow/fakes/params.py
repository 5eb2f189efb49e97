"""Configuration of the fake stages."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from specflow.config.base import NOT_IN_KEY, Section


class SourceParams(Section):
    count: int = 3
    seconds: float = Field(default=0.0, json_schema_extra=NOT_IN_KEY)
    side_log: Path | None = Field(default=None, json_schema_extra=NOT_IN_KEY)
    data: Path | None = None
    child: bool = Field(default=False, json_schema_extra=NOT_IN_KEY)


class ScaleParams(Section):
    factor: int = 2
    fail: bool = False


class TotalParams(Section):
    bytes: int | None = Field(default=None, json_schema_extra=NOT_IN_KEY)


class FakeConfig(Section):
    source: SourceParams = SourceParams()
    scales: dict[str, ScaleParams] = Field(
        default_factory=lambda: {"a": ScaleParams(factor=2), "b": ScaleParams(factor=10)}
    )
    total: TotalParams = TotalParams()
    wanted: bool = True
