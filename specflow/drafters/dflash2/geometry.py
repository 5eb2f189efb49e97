"""The shape of a DFlash 2 drafter: DFlash's, with a convolution and a candidate selector, each of which may be off."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.row_losses import LogitShape


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlash2Geometry(DFlashGeometry):
    """Raises ``ValueError`` from the constructor when the sizes do not fit together."""

    conv_kernel_size: int = 0
    """Taps: how many rows up to its own a row is mixed from. 0: no convolution."""
    conv_group_size: int = 0
    """Channels that share a dynamic coefficient; divides the hidden size. 0: no convolution."""
    selector_rank: int = 0
    """Width of the codebooks. 0: no selector."""
    selector_top_k: int = 0
    """K, candidates of a position, a power of two. 0: no selector."""
    output_multiplier: float = 1.0
    """Factor on the head's product."""
    final_logit_softcapping: float | None = None

    def __post_init__(self) -> None:
        DFlashGeometry.__post_init__(self)  # the class is made anew for its slots, which super() does not see
        taps, group = self.conv_kernel_size, self.conv_group_size
        if bool(taps) != bool(group) or taps < 0 or group < 0:
            raise ValueError(f"conv_kernel_size {taps} and conv_group_size {group}: both above 0, or both 0")
        if group and self.hidden_size % group:
            raise ValueError(f"conv_group_size {group} does not divide hidden_size {self.hidden_size}")
        rank, top_k = self.selector_rank, self.selector_top_k
        if bool(rank) != bool(top_k) or rank < 0 or top_k < 0:
            raise ValueError(f"selector_rank {rank} and selector_top_k {top_k}: both above 0, or both 0")
        if top_k & (top_k - 1) or top_k > self.vocab_size:
            raise ValueError(f"selector_top_k {top_k}: expected a power of two of at most {self.vocab_size} tokens")
        if self.output_multiplier <= 0 or (self.final_logit_softcapping or 1.0) <= 0:
            raise ValueError(
                f"output_multiplier {self.output_multiplier}, final_logit_softcapping {self.final_logit_softcapping}: "
                "expected values above 0"
            )

    @property
    def convolves(self) -> bool:
        return self.conv_kernel_size > 0

    @property
    def selects(self) -> bool:
        return self.selector_top_k > 0

    @property
    def shape(self) -> LogitShape:
        """What is done to the head's product."""
        return LogitShape(multiplier=self.output_multiplier, softcap=self.final_logit_softcapping)
