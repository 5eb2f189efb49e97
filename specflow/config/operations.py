"""``operations``: what is done about failures, limits and messages; nothing here changes an artifact."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specflow.config.base import Section

Seconds = Annotated[float, Field(gt=0)]


class OperationsParams(Section):
    """How runs are carried out: retries, time limits, one stage at a time per device, notifications."""

    retries: int = Field(
        default=2, ge=0, le=20, description="Further tries of a stage that may be retried, after a failure by accident."
    )
    retry_delay: float = Field(
        default=10.0, ge=0, description="Seconds before the first further try; doubled for each one after it."
    )
    time_limits: dict[str, Seconds] = Field(
        default={}, description="Seconds that a try may take, by stage or by node as `train:dflash`."
    )
    device: str | None = Field(
        default="auto",
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="Name of the device that stages use one at a time, over all runs of one Prefect server; "
        "`auto`: this machine's accelerator, where there is one; none: no limit.",
    )
    notify: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]+/[a-z0-9-]+$",
        description="Prefect block that is told how a run ended, as `slack-webhook/team`. Its secrets stay in Prefect.",
    )
    notify_on: Literal["failure", "always"] = Field(default="failure", description="Which ends of a run are told.")
