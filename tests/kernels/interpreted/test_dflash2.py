"""DFlash 2's operators: the kernels against the references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.grouped_dynamic_conv import differentiable, grouped_dynamic_conv
from specflow_kernels.grouped_dynamic_conv.differentiable import grouped_dynamic_conv_triton
from specflow_kernels.grouped_dynamic_conv.reference import grouped_dynamic_conv_reference
from specflow_kernels.selector import selector_lattice, selector_walk
from specflow_kernels.selector.launching import selector_lattice_triton, selector_walk_triton
from specflow_kernels.selector.reference import selector_lattice_reference, selector_walk_reference
from torch import Tensor

from tests.kernels.interpreted.comparing import compare, poisoned


def conv_inputs(
    *, blocks: int, block: int, groups: int, size: int, taps: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    width = groups * size
    return {
        "x_NBH": torch.randn(blocks, block, width, generator=generator).to(dtype),
        "base_tH": torch.randn(taps, width, generator=generator).to(dtype),
        "delta_NBtG": torch.randn(blocks, block, taps, groups, generator=generator).to(dtype),
    }


@settings(max_examples=8, deadline=None)
@given(
    blocks=st.integers(1, 3), block=st.integers(1, 4), groups=st.sampled_from([1, 3, 4, 5]),
    size=st.sampled_from([1, 2, 4]), taps=st.integers(1, 3),
)  # fmt: skip
def test_conv(blocks: int, block: int, groups: int, size: int, taps: int) -> None:
    tensors = conv_inputs(blocks=blocks, block=block, groups=groups, size=size, taps=taps)
    compare(grouped_dynamic_conv_triton, grouped_dynamic_conv_reference, tensors)


def test_conv_over_several_tiles_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differentiable, "TILE", 8)
    monkeypatch.setattr(differentiable, "ROWS", 4)
    tensors = conv_inputs(blocks=3, block=3, groups=5, size=4, taps=2)
    compare(grouped_dynamic_conv_triton, grouped_dynamic_conv_reference, tensors)


def test_conv_is_nothing_at_birth_and_never_crosses_a_block() -> None:
    x = torch.randn(2, 3, 8)
    base = torch.zeros(2, 8)
    base[0] = 1.0
    delta = torch.zeros(2, 3, 2, 2)
    with poisoned():
        assert torch.equal(grouped_dynamic_conv_triton(x, base, delta), x)
        delta[:, :, 1] = 2.0
        out = grouped_dynamic_conv_triton(x, base, delta)
    assert torch.equal(out[:, 0], x[:, 0])
    torch.testing.assert_close(out[:, 1:], x[:, 1:] + 2.0 * x[:, :-1])
    with pytest.raises(ValueError, match="needs a base"):
        grouped_dynamic_conv(x, base, delta[:, :2])


def selector_inputs(seed: int, *, blocks: int, proposals: int, kept: int, rank: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    vocabulary = kept + 3
    ids = torch.rand(blocks, proposals, vocabulary, generator=generator).argsort(dim=-1)[..., :kept]
    return {
        "unary_NMK": torch.randn(blocks, proposals, kept, generator=generator),
        "candidates_NMK": ids,
        "anchor_N": torch.randint(vocabulary, (blocks,), generator=generator),
        "hidden_NMr": torch.randn(blocks, proposals, rank, generator=generator),
        "predecessors_Vr": torch.randn(vocabulary, rank, generator=generator),
        "successors_Vr": torch.randn(vocabulary, rank, generator=generator),
    }


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 99), blocks=st.integers(1, 2), proposals=st.integers(1, 3),
    kept=st.sampled_from([1, 2, 15, 16, 17]), rank=st.sampled_from([1, 16, 65]),
)  # fmt: skip
def test_lattice(seed: int, blocks: int, proposals: int, kept: int, rank: int) -> None:
    case = selector_inputs(seed, blocks=blocks, proposals=proposals, kept=kept, rank=rank)
    with poisoned():
        found = selector_lattice_triton(**case)
    exact = {n: t.double() if t.is_floating_point() else t for n, t in case.items()}
    torch.testing.assert_close(found.double(), selector_lattice_reference(**exact), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(selector_lattice(**case), found, rtol=1e-4, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), blocks=st.integers(1, 3), proposals=st.integers(1, 4), kept=st.integers(1, 17))
def test_walk(seed: int, blocks: int, proposals: int, kept: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Logarithms of powers of two: the softmax and its sums are nearly exact, coins lie between their steps.
    lattice = torch.randint(-3, 4, (blocks, proposals, kept, kept), generator=generator) * 0.6931471805599453
    case = {
        "lattice_NMKK": lattice,
        "candidates_NMK": torch.rand(blocks, proposals, 40, generator=generator).argsort(dim=-1)[..., :kept],
        "greedy_N": torch.randint(2, (blocks,), generator=generator).bool(),
        "temperature_N": torch.ones(blocks),
        "coins_NM": (torch.randint(509, (blocks, proposals), generator=generator) + 0.37) / 509,
    }
    with poisoned():
        tokens, q = selector_walk_triton(**case)
    wanted = selector_walk_reference(**case)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(q, wanted[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(q.sum(dim=-1), torch.ones(blocks, proposals), rtol=1e-5, atol=1e-5)


def test_walk_follows_the_chosen_predecessor() -> None:
    lattice = torch.zeros(3, 2, 2, 2)
    lattice[:, 0, :, 1] = 3.0  # the anchor's rows are equal
    lattice[:, 1, 0] = torch.tensor([5.0, 0.0])
    lattice[:, 1, 1] = torch.tensor([0.0, 1.0])
    lattice[2, 1, 1, 0] = float("nan")
    case = {
        "lattice_NMKK": lattice,
        "candidates_NMK": torch.tensor([[7, 8], [9, 4]]).expand(3, 2, 2),
        "greedy_N": torch.tensor([True, False, True]),
        "temperature_N": torch.tensor([1.0, 0.5, 1.0]),
        "coins_NM": torch.tensor([[0.9, 0.9], [0.0, 0.0], [0.0, 0.0]]),
    }
    with poisoned():
        tokens, q = selector_walk_triton(**case)
    assert tokens.tolist() == [[8, 4], [7, 9], [-1, -1]]
    assert q[0].tolist() == [[0.0, 1.0], [0.0, 1.0]]
    torch.testing.assert_close(q[1, 1], torch.tensor([10.0, 0.0]).softmax(0))
    assert q[2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    for one, other in zip(selector_walk(**case), (tokens, q), strict=True):
        torch.testing.assert_close(one, other)
