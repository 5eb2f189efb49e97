"""The configuration of a toy drafter."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.drafter import DrafterParams


class Params(DrafterParams):
    """Toy: each proposal is a linear map of the last feature and the anchor."""

    method: Literal["toy"] = Field(description="What kind of drafter this is.")
    proposals: int = Field(default=2, ge=1, description="Proposals of a round.")
    sureness: float = Field(default=0.5, ge=0, description="Weight of the loss at rows the drafter is sure of.")
