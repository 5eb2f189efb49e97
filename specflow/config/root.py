"""The whole configuration: one section per stage, and the drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from specflow.config.base import Section
from specflow.config.bench import BenchParams
from specflow.config.calibrate import CalibrateParams
from specflow.config.capture import CaptureParams
from specflow.config.compare import CompareParams
from specflow.config.export import ExportParams
from specflow.config.gate import GateParams, IncumbentParams
from specflow.config.load import LoadParams
from specflow.config.methods import AnyDrafter
from specflow.config.operations import OperationsParams
from specflow.config.parity import ParityParams
from specflow.config.pool import JoinParams, PoolParams
from specflow.config.profile import ProfileParams
from specflow.config.regenerate import RegenerateParams
from specflow.config.report import ReportParams
from specflow.config.retrain import RetrainParams
from specflow.config.target import TargetParams
from specflow.config.tokenize import TokenizeParams
from specflow.config.verify import VerifyParams
from specflow.config.vocab import VocabParams
from specflow.config.watch import WatchParams

DrafterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Config(Section):
    """What a flow is run on: the target, the prompts, the drafters, and how each stage does its work."""

    name: str = Field(description="Name of this configuration in reports and in the Prefect UI.")
    store: Path = Field(
        default=Path("artifacts"), description="Directory of the artifact store; relative to the current directory."
    )
    target: TargetParams = Field(description="The model that a drafter is made for.")
    regenerate: RegenerateParams = Field(description="The target's answers to prompts.")
    tokenize: TokenizeParams = Field(default=TokenizeParams(), description="Token ids and supervised spans.")
    vocab: VocabParams = Field(default=VocabParams(), description="The draft vocabulary; in flow `vocabulary`.")
    capture: CaptureParams = Field(description="The target's hidden states.")
    drafters: dict[DrafterName, AnyDrafter] = Field(min_length=1, description="Drafters to make, by name.")
    calibrate: CalibrateParams = Field(
        default=CalibrateParams(), description="Temperatures of a drafter's confidence; in flow `calibration`."
    )
    profile: ProfileParams = Field(
        default=ProfileParams(), description="What target passes cost; in flow `calibration`."
    )
    export: ExportParams = Field(default=ExportParams(), description="Layout for a serving engine.")
    verify: VerifyParams = Field(default=VerifyParams(), description="Proofs of equality.")
    parity: ParityParams = Field(
        default=ParityParams(), description="A real server against the embedded engine; in flow `check-serving`."
    )
    load: LoadParams = Field(
        default=LoadParams(), description="A server with the drafter against one without; in flow `bench-serving`."
    )
    bench: BenchParams = Field(default=BenchParams(), description="Timing.")
    compare: CompareParams = Field(
        default=CompareParams(), description="Drafters against each other; in flow `compare-drafters`."
    )
    report: ReportParams = Field(default=ReportParams(), description="The report.")
    retrain: RetrainParams = Field(default=RetrainParams(), description="New prompts; in flow `retrain`.")
    pool: PoolParams = Field(default=PoolParams(), description="Documents of all slices; in flow `retrain`.")
    join: JoinParams = Field(default=JoinParams(), description="Features of all slices; in flow `retrain`.")
    incumbent: IncumbentParams = Field(
        default=IncumbentParams(), description="The drafter that a new one must beat; in flow `retrain`."
    )
    gate: GateParams = Field(default=GateParams(), description="Whether a drafter is promoted; in flow `retrain`.")
    watch: WatchParams = Field(default=WatchParams(), description="When a running server calls for `retrain`.")
    operations: OperationsParams = Field(
        default=OperationsParams(), description="Retries, time limits, devices, notifications."
    )
