"""What convolution and selector hold in a training pass beside DFlash's share, from shapes alone."""

from __future__ import annotations

from specflow.drafters.dflash2.geometry import DFlash2Geometry


def extra_bytes(geometry: DFlash2Geometry, *, anchors: int) -> int:
    """For fp32. Of every row and layer: four convolutions' inputs and coefficients; of every proposal its candidates'
    codebook rows with their gradients."""
    g = geometry
    rows, proposals = anchors * g.block_size, anchors * (g.block_size - 1)
    groups = g.hidden_size // g.conv_group_size if g.convolves else 0
    of_row = g.num_layers * (4 * g.hidden_size + 8 * g.conv_kernel_size * groups) if g.convolves else 0
    of_proposal = g.selector_top_k * (2 * g.selector_rank + 6) + 6 * g.selector_rank
    return 4 * (rows * of_row + proposals * of_proposal)
