"""A linear layer whose weights are stored in fp16 and multiplied in fp32: the fastest form on CPUs without bf16 units.

The product is fbgemm's (through PyTorch's quantised operators): weights are packed once into blocks and widened in
registers, so a few rows read half the memory of fp32. Activations and accumulation stay fp32; bf16 weights lose
nothing, except below fp16's subnormals.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP16_LARGEST = 65504.0


def packed_linear_supported() -> bool:
    """Whether this build of PyTorch has fbgemm's fp16 kernels for this CPU."""
    return "fbgemm" in torch.backends.quantized.supported_engines and hasattr(
        torch.ops.quantized, "linear_prepack_fp16"
    )


class PackedLinear:
    """``x [..., I] -> [..., O]`` for a frozen ``weight [O, I]``; the given weight is not kept.

    Raises ``ValueError`` if a weight does not fit in fp16.
    """

    __slots__ = ("_packed", "in_features", "out_features")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        weight = weight_OI.detach().float().contiguous()
        largest = float(weight.abs().max()) if weight.numel() else 0.0
        if not largest <= FP16_LARGEST:
            raise ValueError(f"largest weight is {largest}, fp16 holds at most {FP16_LARGEST}; use precision fp32")
        self.out_features, self.in_features = weight.shape
        bias = None if bias_O is None else bias_O.detach().float().contiguous()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        kernel = torch.ops.quantized.linear_dynamic_fp16.default
        out: Tensor = kernel(x, self._packed) if x.ndim > 1 else kernel(x[None], self._packed)[0]  # it wants rows
        return out
