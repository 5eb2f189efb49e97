"""The configuration of a DSpark drafter. Light on purpose: it is read with the configuration, before anything runs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from specflow.config.drafter import DrafterParams


class Params(DrafterParams):
    """DSpark: a block in one pass, then a small sequential head that sees the tokens already chosen."""

    method: Literal["dspark"] = Field(description="What kind of drafter this is.")
    num_layers: int = Field(default=5, ge=1, description="Draft decoder layers.")
    block_size: int = Field(
        default=7,
        ge=2,
        description="Rows of a block. All of them predict with `sample_from_anchor`, all but the first without it.",
    )
    sample_from_anchor: bool = Field(
        default=True,
        description="Whether the anchor row predicts too: row i then predicts the token after its own position.",
    )
    mask_token: str | None = Field(
        default=None, description="Token whose embedding marks a proposal row; none: chosen from the unused specials."
    )
    head: Literal["markov", "gated", "rnn"] = Field(
        default="markov",
        description="How a proposal corrects the next one's logits: by its token alone (markov), by its token weighed "
        "by the row (gated), or by all tokens of the block so far (rnn).",
    )
    head_rank: int = Field(default=256, ge=1, description="Rank of the correction.")
    confidence: bool = Field(
        default=True, description="Train a head that estimates whether each proposal will be accepted."
    )
    confidence_detach: bool = Field(
        default=True, description="Keep the confidence loss from changing anything but the confidence head."
    )
    ce_weight: float = Field(default=0.1, ge=0, description="Weight of the cross-entropy with the text.")
    l1_weight: float = Field(default=0.9, ge=0, description="Weight of the L1 distance to the target's distribution.")
    confidence_weight: float = Field(default=1.0, ge=0, description="Weight of the confidence loss.")
    position_decay: float | None = Field(
        default=None,
        gt=0,
        description="gamma of the loss weight exp(-j/gamma), j from 0; none: 7/5/4 for 15/9/7 proposals.",
    )

    @model_validator(mode="after")
    def _something_is_trained(self) -> Self:
        if not self.ce_weight + self.l1_weight:
            raise ValueError("expected ce_weight or l1_weight above 0, found both 0: nothing would train the drafter")
        return self

    def gives_confidence(self) -> bool:
        return self.confidence

    def about_parameters(self, *, hidden_size: int, features: int) -> int:
        """The backbone alone: a layer has about 12 squares of the hidden size, the map of the features one each."""
        return hidden_size * hidden_size * (12 * self.num_layers + features)
