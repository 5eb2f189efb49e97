"""The configuration of a DFlash drafter. Light on purpose: it is read with the configuration, before anything runs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from specflow.config.base import increasing, wrong
from specflow.config.drafter import DrafterParams


class BlockParams(DrafterParams):
    """What every method has that proposes a whole block in one pass over DFlash's backbone."""

    num_layers: int = Field(default=5, ge=1, description="Draft decoder layers.")
    block_size: int = Field(default=16, ge=2, description="Rows of a block: the anchor and block_size - 1 proposals.")
    mask_token: str | None = Field(
        default=None, description="Token whose embedding marks a proposal row; none: chosen from the unused specials."
    )
    position_decay: float | None = Field(
        default=None, gt=0, description="gamma of the loss weight exp(-(j-1)/gamma); none: 7/5/4 for blocks of 16/10/8."
    )
    sliding_window: int | None = Field(
        default=None,
        ge=2,
        description="Positions that a row of a sliding layer sees, its own included, at least block_size; none: no "
        "layer slides.",
    )
    sliding_layers: Annotated[tuple[int, ...] | None, AfterValidator(increasing)] = Field(
        default=None, description="Draft layers with the window; none: all of them where there is a window."
    )
    causal_block: bool | None = Field(
        default=None,
        description="Whether a row sees the later rows of its block: true hides them, false shows them; none: hidden "
        "in sliding layers, shown in the others.",
    )
    loss: Literal["ce", "kl", "reverse_kl", "l1", "tv", "lk_alpha", "lk_lambda"] = Field(
        default="ce",
        description="`ce`: the text's own tokens (and `train.soft_targets`); the others compare with the target's "
        "whole distribution: `kl`, `reverse_kl`, `l1`, `tv` (half of it), `lk_alpha` (minus the logarithm of the "
        "expected acceptance) or `lk_lambda` (from `kl` to `tv` as acceptance grows).",
    )
    lk_scale: float = Field(default=1.0, ge=0, le=1, description="Of `lk_lambda`: weight of `kl` at no acceptance.")
    lk_decay: float = Field(
        default=3.0, ge=0, description="Of `lk_lambda`: the weight of `kl` is lk_scale * exp(-lk_decay * acceptance)."
    )
    position_weights: Literal["decay", "dpace", "dpace_prefix", "dpace_suffix"] = Field(
        default="decay",
        description="`decay` as `position_decay` says; `dpace` by how much a better proposal would lengthen the "
        "accepted prefix now, which costs a second forward pass; the others are parts of it.",
    )
    dpace_smoothing: float = Field(
        default=0.5, ge=0, le=1, description="Of `dpace`: share of certainty mixed into the drafter's probabilities."
    )

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.sliding_window is None and self.sliding_layers:
            raise wrong("layers without a window", found=self.sliding_layers, expected="a sliding_window for them")
        if self.sliding_window is not None and self.sliding_window < self.block_size:
            raise wrong(
                "sliding_window is shorter than a block", found=self.sliding_window, expected=f">= {self.block_size}"
            )
        if self.sliding_layers and self.sliding_layers[-1] >= self.num_layers:
            raise wrong(
                "sliding_layers beyond the draft layers", found=self.sliding_layers, expected=f"< {self.num_layers}"
            )
        return self

    @model_validator(mode="after")
    def _soft_targets(self) -> Self:
        if self.train.soft_targets > 0 and self.loss != "ce":
            raise wrong(
                "train.soft_targets belong to the loss ce",
                found=f"loss {self.loss}, train.soft_targets {self.train.soft_targets}",
                expected="soft_targets 0, or loss ce",
            )
        return self

    @property
    def windowed_layers(self) -> tuple[int, ...]:
        if self.sliding_window is None:
            return ()
        return tuple(range(self.num_layers)) if self.sliding_layers is None else self.sliding_layers

    def about_parameters(self, *, hidden_size: int, features: int) -> int:
        """A decoder layer has about 12 squares of the hidden size, the map of the features one for each."""
        return hidden_size * hidden_size * (12 * self.num_layers + features)

    def gives_confidence(self) -> bool:
        return False


class Params(BlockParams):
    """DFlash: a whole block of proposals in one pass."""

    proposes_trees: ClassVar[bool] = True

    method: Literal["dflash"] = Field(description="What kind of drafter this is.")
