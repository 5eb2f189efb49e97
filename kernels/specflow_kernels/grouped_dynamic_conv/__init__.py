"""Causal convolution inside a block with factors that depend on the row (METHODS 7).

Legend: N blocks, B rows of a block, H channels, t taps, G groups of neighbouring channels.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.grouped_dynamic_conv.vectorised import grouped_dynamic_conv_vectorised

LARGEST_GROUP = 512


def grouped_dynamic_conv(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Tensor:
    """``out[n, b, h] = sum over taps of (base[tap, h] + delta[n, b, tap, group of h]) * x[n, b - tap, h]``.

    One side of the convolution: its base and its part of the projection of the sublayer's input. Rows before the block
    are zeros. Sums in fp32. Differentiable once. Raises ``ValueError`` if shapes do not fit.
    """
    blocks, block, width = x_NBH.shape
    taps, groups = delta_NBtG.shape[2:]
    if tuple(delta_NBtG.shape[:2]) != (blocks, block) or tuple(base_tH.shape) != (taps, width) or width % groups:
        raise ValueError(
            f"x {tuple(x_NBH.shape)} needs a base (taps, {width}) and deltas ({blocks}, {block}, taps, a divisor of "
            f"{width}), found {tuple(base_tH.shape)} and {tuple(delta_NBtG.shape)}"
        )
    run = grouped_dynamic_conv_vectorised  # what the reference computes, faster
    if explain(x_NBH, base_tH, delta_NBtG).kernel:
        from specflow_kernels.grouped_dynamic_conv.differentiable import grouped_dynamic_conv_triton

        run = grouped_dynamic_conv_triton
    return run(x_NBH, base_tH, delta_NBtG)


def explain(x_NBH: Tensor, base_tH: Tensor, delta_NBtG: Tensor) -> Choice:
    """What :func:`grouped_dynamic_conv` would run for these tensors, and why."""
    size = x_NBH.shape[2] // delta_NBtG.shape[3]
    return choose(
        (x_NBH, base_tH, delta_NBtG),
        refusals=(
            (size & (size - 1) > 0, f"groups of {size} channels; the kernel needs a power of two"),
            (size > LARGEST_GROUP, f"groups of {size} channels; the kernel's tiles hold up to {LARGEST_GROUP}"),
        ),
    )
