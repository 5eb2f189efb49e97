"""Grouped dynamic convolution along the rows of a block (METHODS 7): each row mixed with those just before it.

Legend: N blocks, B rows of a block, T taps, H channels, G groups of channels, s = H / G channels of a group.
"""

from __future__ import annotations

import torch
from specflow_kernels.grouped_dynamic_conv import grouped_dynamic_conv
from torch import Tensor, nn


class BlockConvolution(nn.Module):
    """Around a sublayer: ``prepare`` mixes the rows it reads, ``finish`` those it wrote.

    Both kernels come from one projection of the rows read. At birth both are the identity. ``base_kernel`` is
    ``[2, T, H]``, the first index the side: input, output.
    """

    def __init__(self, hidden_size: int, *, taps: int, group_size: int) -> None:
        super().__init__()
        self.taps, self.groups = taps, hidden_size // group_size
        self.base_kernel = nn.Parameter(torch.empty(2, taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * self.groups, bias=False)
        self.become_identity()

    @torch.no_grad()
    def become_identity(self) -> None:
        self.base_kernel.zero_()
        self.base_kernel[:, 0] = 1.0
        self.kernel_projection.weight.zero_()

    def prepare(self, x_NBH: Tensor) -> tuple[Tensor, Tensor]:
        """The mixed rows, and ``[N, B, T, G]`` what ``finish`` adds to its base kernel."""
        delta: Tensor = self.kernel_projection(x_NBH).view(*x_NBH.shape[:-1], 2, self.taps, self.groups)
        return grouped_dynamic_conv(x_NBH, self.base_kernel[0], delta[..., 0, :, :]), delta[..., 1, :, :]

    def finish(self, x_NBH: Tensor, delta_NBTG: Tensor) -> Tensor:
        return grouped_dynamic_conv(x_NBH, self.base_kernel[1], delta_NBTG)
