"""``loss``: what a drafter of blocks is trained for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.base import Section


class BlockLossParams(Section):
    """What the rows of a block are trained for, and how its positions are weighted."""

    kind: Literal["ce", "kl", "reverse_kl", "l1", "tv", "lk_alpha", "lk_lambda"] = Field(
        default="ce",
        description="`ce`: the text's own tokens (and `train.soft_targets`); the others compare with the target's "
        "whole distribution: `kl`, `reverse_kl`, `l1`, `tv` (half of it), `lk_alpha` (minus the logarithm of the "
        "expected acceptance) or `lk_lambda` (from `kl` to `tv` as acceptance grows).",
    )
    lk_scale: float = Field(default=1.0, ge=0, le=1, description="Of `lk_lambda`: weight of `kl` at no acceptance.")
    lk_decay: float = Field(
        default=3.0, ge=0, description="Of `lk_lambda`: the weight of `kl` is lk_scale * exp(-lk_decay * acceptance)."
    )
    weighting: Literal["decay", "dpace", "dpace_prefix", "dpace_suffix"] = Field(
        default="decay",
        description="Of positions: `decay` as `position_decay` says; `dpace` by how much a better proposal would "
        "lengthen the accepted prefix now, which costs a second forward pass; the others are parts of it.",
    )
    dpace_smoothing: float = Field(
        default=0.5, ge=0, le=1, description="Of `dpace`: share of certainty mixed into the drafter's probabilities."
    )
