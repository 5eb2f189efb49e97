"""The sequential head's walk: the kernel against the reference, its noise against the law it must have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.markov_walk import markov_walk
from specflow_kernels.markov_walk.launching import markov_walk_triton
from specflow_kernels.markov_walk.reference import markov_walk_reference
from specflow_kernels.philox import uniform
from torch import Tensor

from tests.kernels.interpreted.comparing import poisoned


@triton.jit  # type: ignore[untyped-decorator]
def rand_kernel(seeds, offsets, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(tl.load(seeds + i), tl.load(offsets + i)))


def test_uniform_numbers_are_tritons() -> None:
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(2**62, (64,), generator=generator)
    offsets = torch.randint(2**40, (64,), generator=generator)
    seeds[:3], offsets[:3] = torch.tensor([0, 1, 2**32]), torch.tensor([0, 2**32, 7])
    out = torch.full((64,), float("nan"))
    rand_kernel[(1,)](seeds, offsets, out, BLOCK=64)
    assert torch.equal(uniform(seeds, offsets), out)
    assert 0.0 <= float(out.min()) < float(out.max()) < 1.0


def inputs(seed: int, *, batch: int, proposals: int, vocabulary: int, rank: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "base_BMV": torch.randn(batch, proposals, vocabulary, generator=generator),
        "anchor_B": torch.randint(vocabulary, (batch,), generator=generator),
        "predecessors_Vr": torch.randn(vocabulary, rank, generator=generator),
        "successors_Vr": torch.randn(vocabulary, rank, generator=generator),
        "greedy_B": torch.randint(2, (batch,), generator=generator).bool(),
        "temperature_B": torch.rand(batch, generator=generator) + 0.5,
        "seed_B": torch.randint(2**40, (batch,), generator=generator),
    }


def gate(step: int, embedding_Br: Tensor) -> Tensor:
    return torch.sigmoid(embedding_Br + step) * embedding_Br


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 99), batch=st.sampled_from([1, 2, 17]), proposals=st.integers(1, 3),
    vocabulary=st.sampled_from([1, 2, 127, 128, 129]), rank=st.sampled_from([1, 16, 65]), gated=st.booleans(),
)  # fmt: skip
def test_equals_the_reference(
    seed: int, batch: int, proposals: int, vocabulary: int, rank: int, gated: bool
) -> None:  # fmt: skip
    case = inputs(seed, batch=batch, proposals=proposals, vocabulary=vocabulary, rank=rank)
    with poisoned():
        found = markov_walk_triton(**case, mix=gate if gated else None)
    wanted = markov_walk_reference(**case, mix=gate if gated else None)
    assert torch.equal(found.tokens_BM, wanted.tokens_BM)
    assert torch.equal(found.embeddings_BMr, wanted.embeddings_BMr)
    torch.testing.assert_close(found.logits_BMV, wanted.logits_BMV, rtol=1e-4, atol=1e-4)


def test_greedy_takes_the_lowest_of_equals_and_nan_ends_a_walk() -> None:
    case = inputs(0, batch=2, proposals=3, vocabulary=200, rank=4)
    case["successors_Vr"].zero_()
    case["base_BMV"].zero_()
    case["base_BMV"][:, 0, [150, 199]] = 1.0
    case["base_BMV"][1, 1, 160] = float("nan")
    case["greedy_B"] = torch.tensor([True, True])
    with poisoned():
        found = markov_walk_triton(**case)
    assert found.tokens_BM.tolist() == [[150, 0, 0], [150, -1, -1]]
    assert markov_walk(**case).tokens_BM.tolist() == found.tokens_BM.tolist()


def test_draws_have_the_distribution_of_the_logits() -> None:
    count = 4000
    base = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(count, 1, 4)
    walk = markov_walk(
        base, torch.zeros(count, dtype=torch.int64), torch.zeros(4, 1), torch.zeros(4, 1),
        greedy_B=torch.zeros(count, dtype=torch.bool), temperature_B=torch.ones(count), seed_B=torch.arange(count),
    )  # fmt: skip
    shares = torch.bincount(walk.tokens_BM[:, 0], minlength=4) / count
    # Four standard deviations of the largest share's estimate.
    assert float((shares - torch.tensor([0.5, 0.3, 0.15, 0.05])).abs().max()) < 4 * 0.5 / count**0.5


def test_shapes_are_checked() -> None:
    case = inputs(0, batch=2, proposals=1, vocabulary=5, rank=2)
    with pytest.raises(ValueError, match="rank 2 need"):
        markov_walk(**{**case, "anchor_B": case["anchor_B"][:1]})
