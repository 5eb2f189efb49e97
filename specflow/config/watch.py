"""``watch``: when a server's tau counts as fallen, and what is done then."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from specflow.config.base import Section, wrong


class WatchParams(Section):
    """Watch what a server accepts, and retrain when it falls."""

    url: str | None = Field(default=None, pattern="^https?://", description="Address of the server.")
    tau: float | None = Field(
        default=None, gt=0, description="Tau to compare with; none: what the promoted drafter was promoted with."
    )
    margin: float = Field(default=0.1, gt=0, lt=1, description="Fall below that tau, as a share, that counts.")
    recovery: float = Field(
        default=0.05, ge=0, lt=1, description="Fall, as a share, up to which a server counts as recovered."
    )
    seconds: float = Field(default=1800, ge=0, description="How long it must have fallen.")
    cool_down: float = Field(default=21600, ge=0, description="Seconds after a retraining in which none is started.")
    least_rounds: int = Field(default=200, ge=1, description="Fewest rounds from which a reading is made.")
    interval: float = Field(default=60, gt=0, description="Seconds between readings.")
    flow: str = Field(default="retrain", description="Flow that is run then.")
    deployment: str | None = Field(
        default=None,
        description="Prefect deployment that is run instead, as FLOW/NAME, at the server that PREFECT_API_URL names.",
    )

    @model_validator(mode="after")
    def _recovers_above_the_margin(self) -> Self:
        if self.recovery >= self.margin:
            raise wrong(
                "a server would count as fallen and as recovered",
                found=f"recovery {self.recovery} with margin {self.margin}",
                expected="a recovery below the margin",
            )
        return self
