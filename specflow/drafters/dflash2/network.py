"""DFlash's network with a convolution around attention and MLP, and the selector beside it (METHODS 7).

Legend: N blocks, B rows of a block, H hidden size, T taps.
"""

from __future__ import annotations

from torch import Tensor

from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.dflash.network import Context, DFlashNetwork, Layer, distinct_rows, repeat_masks
from specflow.drafters.dflash2.convolution import BlockConvolution
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.selector import CandidateSelector


class ConvolvedLayer(Layer):
    """A layer whose sublayers read and write rows mixed with those before them in the block.

    The context, which is keys and values only, is not convolved.
    """

    def __init__(self, geometry: DFlashGeometry, index: int = 0) -> None:
        super().__init__(geometry, index)
        assert isinstance(geometry, DFlash2Geometry)
        size, taps, group = geometry.hidden_size, geometry.conv_kernel_size, geometry.conv_group_size
        self.attention_conv = BlockConvolution(size, taps=taps, group_size=group)
        self.mlp_conv = BlockConvolution(size, taps=taps, group_size=group)

    def forward(
        self, x_NBH: Tensor, cos: Tensor, sin: Tensor, *, context: Context, first_row: int, equal_masks: bool
    ) -> Tensor:
        """As DFlash's. Every row is carried to the end, because those after it are mixed from it."""
        own, size = self.attention_conv.taps, x_NBH.shape[1]
        if equal_masks and own < size:
            # Rows from ``own`` on have only equal rows before them, so after the mixing they are still equal.
            normed = repeat_masks(self.input_layernorm(distinct_rows(x_NBH)), own + 1)
            mixed, delta = self.attention_conv.prepare(normed)
            attended = self.attend(
                distinct_rows(mixed, distinct=own),
                cos,
                sin,
                context=context,
                first_row=0,
                size=size,
                distinct=own,
            )
            delta = repeat_masks(distinct_rows(delta, distinct=own), size, distinct=own)
        else:
            mixed, delta = self.attention_conv.prepare(self.input_layernorm(x_NBH))
            attended = self.attend(mixed, cos, sin, context=context, first_row=0)
        x = x_NBH + self.attention_conv.finish(attended, delta)
        mixed, delta = self.mlp_conv.prepare(self.post_attention_layernorm(x))
        out: Tensor = x + self.mlp_conv.finish(self.mlp(mixed), delta)
        return out[:, first_row:]


class DFlash2Network(DFlashNetwork):
    """Trainable part of a DFlash 2 drafter; without convolution and selector it is DFlash's."""

    geometry: DFlash2Geometry

    def __init__(self, geometry: DFlash2Geometry) -> None:
        self.layer_type = ConvolvedLayer if geometry.convolves else Layer
        super().__init__(geometry)
        if geometry.selects:
            self.candidate_selector = CandidateSelector(
                geometry.hidden_size, geometry.vocab_size, rank=geometry.selector_rank
            )

    @property
    def selector(self) -> CandidateSelector | None:
        return self.candidate_selector if self.geometry.selects else None

    @property
    def convolved_layers(self) -> list[ConvolvedLayer]:
        return [layer for layer in self.layers if isinstance(layer, ConvolvedLayer)]
