"""Features in 8 bits: the kernels, the references and the feature store's own code give the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.quantize_features import dequantize_features, quantize_features
from specflow_kernels.quantize_features.launching import dequantize_features_triton, quantize_features_triton
from torch import Tensor

from specflow.features.quantise import dequantise, quantise
from tests.kernels.interpreted.comparing import poisoned

NAMES = {True: "float8_e4m3fn", False: "int8"}


def same_as_the_store(rows: Tensor, *, fp8: bool) -> None:
    with poisoned():
        codes, scales = quantize_features_triton(rows, fp8=fp8)
        back = dequantize_features_triton(codes, scales)
    stored = quantise(rows, NAMES[fp8])
    for found in ((codes, scales), quantize_features(rows, fp8=fp8)):
        assert torch.equal(found[0], stored.codes)
        assert torch.equal(found[1], stored.scales)
    assert torch.equal(back, dequantise(*stored, NAMES[fp8]))
    assert torch.equal(back, dequantize_features(codes, scales))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999), tokens=st.integers(0, 3), layers=st.integers(1, 2),
    width=st.sampled_from([1, 15, 16, 17, 40]), exponent=st.integers(-130, 120), fp8=st.booleans(),
)  # fmt: skip
def test_random_rows(seed: int, tokens: int, layers: int, width: int, exponent: int, fp8: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Magnitudes over many powers of two, so that codes of every size and exact ties occur.
    spread = torch.ldexp(torch.randn(tokens, layers, width, generator=generator),
                         torch.randint(-12, 3, (tokens, layers, width), generator=generator))  # fmt: skip
    same_as_the_store(torch.ldexp(spread, torch.tensor(exponent)).bfloat16(), fp8=fp8)


@pytest.mark.parametrize("fp8", [True, False])
def test_every_mantissa_and_sign(fp8: bool) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    fine = every[every.float().abs() <= 448.0]
    # The first number fixes the scale at 1, or at 448 / 127 rounded up.
    rows = torch.cat((torch.tensor([448.0], dtype=torch.bfloat16), fine[:: 1 if fp8 else 3]))[None]
    same_as_the_store(rows, fp8=fp8)


def test_zeros_and_the_largest_that_is_taken() -> None:
    for fp8 in (True, False):
        same_as_the_store(torch.tensor([[0.0, -0.0], [2.0**127, -1.0], [2.0**-133, 0.0]]).bfloat16(), fp8=fp8)


@pytest.mark.parametrize("fp8", [True, False])
def test_rows_that_are_no_features_are_marked(fp8: bool) -> None:
    rows = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0], [1.5 * 2.0**127, 1.0], [1.0, 2.0]]).bfloat16()
    with poisoned():
        found = quantize_features_triton(rows, fp8=fp8)
    for codes, scales in (found, quantize_features(rows, fp8=fp8)):
        assert scales.isnan().tolist() == [True, True, True, False]
        assert codes[:3].tolist() == [[0, 0]] * 3
    with pytest.raises(ValueError, match="expected bfloat16"):
        quantize_features(rows.float(), fp8=fp8)
    with pytest.raises(ValueError, match="a scale per row"):
        dequantize_features(found[0], found[1][:2])
