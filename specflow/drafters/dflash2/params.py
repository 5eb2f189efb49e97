"""The configuration of a DFlash 2 drafter. Light on purpose: it is read with every configuration."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from specflow.config.base import wrong
from specflow.drafters.dflash.params import BlockParams


class Params(BlockParams):
    """DFlash 2: DFlash with a convolution over the block and a selector among each position's candidates."""

    method: Literal["dflash2"] = Field(description="What kind of drafter this is.")
    conv_kernel_size: int = Field(
        default=2, ge=1, description="Rows of the block, its own and those before it, that a row is mixed from."
    )
    conv_group_size: int = Field(
        default=16,
        ge=0,
        description="Channels that share a dynamic coefficient; divides the target's hidden size. 0: no convolution.",
    )
    selector_rank: int = Field(default=256, ge=1, description="Width of the selector's codebooks.")
    selector_top_k: int = Field(
        default=16, ge=0, description="Candidates of a position, a power of two. 0: no selector."
    )
    selector_init: float = Field(
        default=0.1, gt=0, description="Standard deviation of a fresh selector's predecessor codebook and projection."
    )
    selector_weight: float = Field(default=1.0, ge=0, description="Weight of the selector's loss once it is whole.")
    selector_warmup: float = Field(
        default=0.0, ge=0, le=1, description="Share of the steps before the selector's loss begins."
    )
    selector_ramp: float = Field(
        default=0.1, ge=0, le=1, description="Share of the steps, after these, in which its weight grows."
    )
    selector_stop_gradient: bool = Field(
        default=False,
        description="Keep the gradient of the selector's loss from the backbone: only codebooks and projection learn "
        "from it.",
    )
    output_multiplier: float = Field(default=1.0, gt=0, description="Factor on the head's product.")
    final_logit_softcapping: float | None = Field(
        default=None, gt=0, description="Cap c of c * tanh(logit / c), after the factor; none: no cap."
    )

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        if self.selector_top_k & (self.selector_top_k - 1):
            raise wrong(
                "selector_top_k is no power of two, which serving engines need",
                found=self.selector_top_k,
                expected="0, or 1, 2, 4, 8, 16, ..",
            )
        return self
