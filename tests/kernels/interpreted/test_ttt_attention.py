"""Training-time test's attention: the kernels against the dense reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.ttt_attention.differentiable import ttt_attention_triton
from specflow_kernels.ttt_attention.reference import ttt_attention_reference
from torch import Tensor

from tests.kernels.interpreted.comparing import compare, poisoned


def inputs(
    *, lengths: list[int], depths: int, groups: int, ratio: int, size: int, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = sum(lengths)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    tensors = {
        "query_TAd": random(tokens, groups * ratio, size),
        "key_TGd": random(tokens, groups, size),
        "value_TGd": random(tokens, groups, size),
        "chain_key_CTGd": random(depths, tokens, groups, size),
        "chain_value_CTGd": random(depths, tokens, groups, size),
    }
    lengths_D = torch.tensor(lengths)
    return tensors, (lengths_D.cumsum(0) - lengths_D).repeat_interleave(lengths_D)


@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 15, 16, 17]), min_size=1, max_size=3),
    depths=st.integers(0, 3),
    groups=st.integers(1, 2),
    ratio=st.integers(1, 3),
    size=st.sampled_from([4, 16, 20]),
)
def test_equals_the_reference(lengths: list[int], depths: int, groups: int, ratio: int, size: int) -> None:
    tensors, first_T = inputs(lengths=lengths, depths=depths, groups=groups, ratio=ratio, size=size)
    compare(ttt_attention_triton, ttt_attention_reference, tensors, first_T=first_T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_over_several_tiles(dtype: torch.dtype) -> None:
    tensors, first_T = inputs(lengths=[66, 3], depths=2, groups=1, ratio=2, size=16, dtype=dtype)
    compare(ttt_attention_triton, ttt_attention_reference, tensors, first_T=first_T)


def test_a_row_sees_no_other_rollout() -> None:
    tensors, first_T = inputs(lengths=[5, 4], depths=2, groups=1, ratio=1, size=8)
    with poisoned():
        before = ttt_attention_triton(**tensors, first_T=first_T)
        tensors["chain_key_CTGd"][:, 6] += 1.0
        tensors["value_TGd"][6] += 1.0
        changed = (ttt_attention_triton(**tensors, first_T=first_T) != before).flatten(1).any(dim=1)
    assert changed.tolist() == [False] * 6 + [True] * 3


def test_no_rows() -> None:
    tensors, first_T = inputs(lengths=[0], depths=1, groups=1, ratio=1, size=8)
    assert ttt_attention_triton(**tensors, first_T=first_T).shape == (0, 1, 8)
