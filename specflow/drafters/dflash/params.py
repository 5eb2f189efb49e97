"""The configuration of a DFlash drafter. Light on purpose: it is read with the configuration, before anything runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.drafter import DrafterParams


class Params(DrafterParams):
    """DFlash: a whole block of proposals in one pass."""

    method: Literal["dflash"] = Field(description="What kind of drafter this is.")
    num_layers: int = Field(default=5, ge=1, description="Draft decoder layers.")
    block_size: int = Field(default=16, ge=2, description="Rows of a block: the anchor and block_size - 1 proposals.")
    mask_token: str | None = Field(
        default=None, description="Token whose embedding marks a proposal row; none: chosen from the unused specials."
    )
    position_decay: float | None = Field(
        default=None, gt=0, description="gamma of the loss weight exp(-(j-1)/gamma); none: 7/5/4 for blocks of 16/10/8."
    )

    def about_parameters(self, *, hidden_size: int, features: int) -> int:
        """A decoder layer has about 12 squares of the hidden size, the map of the features one for each."""
        return hidden_size * hidden_size * (12 * self.num_layers + features)

    def gives_confidence(self) -> bool:
        return False
