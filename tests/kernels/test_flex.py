"""FlexAttention, as it is measured against, computes what the reference computes."""

from __future__ import annotations

import pytest
import torch
from specflow_kernels.anchored_block_attention.flex import flex
from specflow_kernels.anchored_block_attention.operator import make
from specflow_kernels.anchored_block_attention.reference import anchored_block_attention_reference


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, 5)])
def test_flex_attention_equals_the_reference(causal: bool, window: int | None) -> None:
    torch.manual_seed(0)
    inputs = make(
        torch.device("cpu"), documents=2, tokens=12, anchors=2, block=4, heads=4, groups=2, size=16,
        dtype=torch.float32, causal=causal, window=window,
    )  # fmt: skip
    found = flex(inputs, compiled=False)(**inputs)
    torch.testing.assert_close(found, anchored_block_attention_reference(**inputs), rtol=1e-5, atol=1e-5)
