"""``gate`` and ``incumbent``: whether a new drafter takes the place of the promoted one. In flow ``retrain``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specflow.config.base import InputPath, Section

PROMOTED = "promoted"
"""In place of a drafter, the one that is promoted; also its name among the modes of a comparison."""

ServiceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class GateParams(Section):
    """Decide whether a new drafter is promoted."""

    service: ServiceName = Field(
        default="default", description="Name that the promoted drafter is known by, as in `promoted/NAME` of the store."
    )
    margin: float = Field(
        default=0.02, ge=0, description="Least gain in tokens per second, as a share, that is worth a change."
    )
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1, description="Of the bootstrap interval whose lower end must reach the margin."
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="Requests in flight that count, one of compare.concurrency; none: its last."
    )
    min_waves: int = Field(default=8, ge=2, description="Fewest waves of prompts from which anything is concluded.")
    certificate: bool = Field(
        default=True, description="Require the certificate of `verify` that sampling is not changed."
    )


class IncumbentParams(Section):
    """The drafter that a new one must beat."""

    drafter: InputPath | None = Field(
        default=None, description="Artifact of a drafter to beat; none: the promoted one of gate.service."
    )
