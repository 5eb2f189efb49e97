"""The whole configuration: one section per stage, and the drafters."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from specflow.config.base import Section
from specflow.config.bench import BenchParams
from specflow.config.capture import CaptureParams
from specflow.config.drafter import DrafterParams
from specflow.config.export import ExportParams
from specflow.config.regenerate import RegenerateParams
from specflow.config.report import ReportParams
from specflow.config.target import TargetParams
from specflow.config.tokenize import TokenizeParams
from specflow.config.verify import VerifyParams


class Config(Section):
    name: str = Field(description="Name of this configuration in reports and in the Prefect UI.")
    store: Path = Field(default=Path("artifacts"), description="Directory of the artifact store.")
    target: TargetParams
    regenerate: RegenerateParams
    tokenize: TokenizeParams = TokenizeParams()
    capture: CaptureParams
    drafters: dict[str, DrafterParams] = Field(min_length=1, description="Drafters to make, by name.")
    export: ExportParams = ExportParams()
    verify: VerifyParams = VerifyParams()
    bench: BenchParams = BenchParams()
    report: ReportParams = ReportParams()
