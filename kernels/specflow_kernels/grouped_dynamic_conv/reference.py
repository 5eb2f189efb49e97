"""The grouped dynamic convolution tap by tap: what the kernel must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def grouped_dynamic_conv_reference(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Tensor:
    """``[N, B, H]``; arguments as in ``grouped_dynamic_conv``."""
    wide = torch.promote_types(x_NBH.dtype, torch.float32)
    width, groups = x_NBH.shape[2], delta_NBtG.shape[3]
    x, block = x_NBH.to(wide), x_NBH.shape[1]
    out = torch.zeros_like(x)
    for tap in range(base_tH.shape[0]):
        factor = base_tH[tap].to(wide) + delta_NBtG[:, :, tap].to(wide).repeat_interleave(width // groups, dim=-1)
        shifted = torch.nn.functional.pad(x, (0, 0, tap, 0))[:, :block]
        out = out + factor * shifted
    return out.to(x_NBH.dtype)
