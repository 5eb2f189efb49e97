"""The configuration of an EAGLE drafter. Light on purpose: it is read with the configuration of a run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from specflow.config.base import wrong
from specflow.config.drafter import DrafterParams


def _no_layers(layer_ids: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if layer_ids:
        raise wrong(
            "layers for a drafter that reads none",
            found=list(layer_ids),
            expected="no layer_ids: EAGLE reads the target's last hidden states, which are always captured",
        )
    return layer_ids


class Params(DrafterParams):
    """EAGLE: one token after the other, each from a prediction of the target's next hidden state."""

    proposes_trees: ClassVar[bool] = True
    serves_trees: ClassVar[bool] = True

    method: Literal["eagle"] = Field(description="What kind of drafter this is.")
    layer_ids: Annotated[tuple[int, ...] | None, AfterValidator(_no_layers)] = Field(
        default=None, description="Target layers read by the drafter; none: all that were captured."
    )
    num_layers: int = Field(default=1, ge=1, description="Draft decoder layers.")
    draft_steps: int = Field(default=5, ge=1, description="Proposals of a chain.")
    feature_weight: float = Field(
        default=1.0, ge=0, description="Loss weight of the predicted hidden state (smooth L1 to the target's)."
    )
    token_weight: float = Field(
        default=0.1, ge=0, description="Loss weight of the token (cross-entropy to the target's distribution)."
    )
    noise: float = Field(
        default=0.2,
        ge=0,
        description="Width of the uniform noise on hidden states in training, for a document of 512 tokens; more for "
        "a shorter one, in proportion.",
    )
    draft_vocab_size: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that can be proposed: the most frequent of the training answers, and every special and "
        "single-byte token; none: all tokens.",
    )

    def layers_of(self, captured: tuple[int, ...]) -> tuple[int, ...]:
        return ()

    def gives_confidence(self) -> bool:
        return False

    def about_parameters(self, *, hidden_size: int, features: int) -> int:
        """A decoder layer has about 12 squares of the hidden size; two more join token and state."""
        return hidden_size * hidden_size * (12 * self.num_layers + 2)
