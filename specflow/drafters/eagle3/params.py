"""The configuration of an EAGLE-3 drafter. Light on purpose: it is read with the configuration of a run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from specflow.config.base import Section
from specflow.config.drafter import DrafterParams


class LossParams(Section):
    """What a row is trained for, given the target's distribution p and the drafter's q of the same token."""

    kind: Literal["soft_ce", "kl", "reverse_kl", "ce", "tv", "lk_alpha", "lk_lambda"] = Field(
        default="soft_ce",
        description="`soft_ce`: cross-entropy to the target's distribution; `kl`, `reverse_kl`: divergence from it; "
        "`ce`: the text's own token; `tv`: 1 - acceptance; `lk_alpha`: minus the logarithm of the acceptance; "
        "`lk_lambda`: from `kl` to `tv` as acceptance grows.",
    )
    lk_scale: float = Field(default=1.0, ge=0, le=1, description="Of `lk_lambda`: weight of `kl` at no acceptance.")
    lk_decay: float = Field(
        default=3.0, ge=0, description="Of `lk_lambda`: the weight of `kl` is lk_scale * exp(-lk_decay * acceptance)."
    )


class Params(DrafterParams):
    """EAGLE-3: one token after the other, each from the drafter's own state."""

    proposes_trees: ClassVar[bool] = True
    serves_trees: ClassVar[bool] = True

    method: Literal["eagle3"] = Field(description="What kind of drafter this is.")
    num_layers: int = Field(default=1, ge=1, description="Draft decoder layers.")
    draft_steps: int = Field(default=5, ge=1, description="Proposals of a chain.")
    ttt_length: int = Field(default=7, ge=1, description="Steps of its own that training takes at every position.")
    ttt_decay: float = Field(
        default=0.8, gt=0, le=1, description="Loss weight of a training step relative to the one before it."
    )
    draft_vocab_size: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that can be proposed, with a head of the drafter's own: the most frequent of the training "
        "answers, and every special and single-byte token; none: all tokens, by the target's head.",
    )
    loss: LossParams = Field(default=LossParams(), description="What a row is trained for.")
    mask_alignment: Literal["predicted", "reference"] = Field(
        default="predicted",
        description="A row counts if the token it predicts is supervised; `reference`: if the token two before that "
        "one is, as in a common open implementation.",
    )
    fc_norm: bool = Field(default=False, description="Normalise each captured layer before they are fused.")
    norm_output: bool = Field(
        default=False, description="The state that goes on to the next step is taken after the final norm."
    )

    def gives_confidence(self) -> bool:
        return False

    def about_parameters(self, *, hidden_size: int, features: int) -> int:
        """A decoder layer has about 12 squares of the hidden size, the first one 3 more; then fusion and own head."""
        own_head = (self.draft_vocab_size or 0) * hidden_size
        return hidden_size * hidden_size * (12 * self.num_layers + 3 + features) + own_head
