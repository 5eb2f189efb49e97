"""Anchored block attention: the kernels against the dense reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.anchored_block_attention.differentiable import anchored_block_attention_triton, seen_by
from specflow_kernels.anchored_block_attention.reference import anchored_block_attention_reference, visible_keys
from torch import Tensor

from tests.kernels.interpreted.comparing import compare, poisoned


def inputs(
    *, documents: list[tuple[int, list[int]]], rows: int, block: int, groups: int, ratio: int, size: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """``documents``: context rows of each, and what its blocks see."""
    generator = torch.Generator().manual_seed(1)
    starts, visible, context = [], [], 0
    for tokens, anchors in documents:
        starts += [context] * len(anchors)
        visible += anchors
        context += tokens
    blocks = len(visible)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    tensors = {
        "query_NRAd": random(blocks, rows, groups * ratio, size),
        "key_NBGd": random(blocks, block, groups, size),
        "value_NBGd": random(blocks, block, groups, size),
        "context_key_SGd": random(context, groups, size),
        "context_value_SGd": random(context, groups, size),
    }
    return tensors, {"start_N": torch.tensor(starts), "visible_N": torch.tensor(visible)}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    block = draw(st.integers(1, 5))
    documents = []
    for _ in range(draw(st.integers(1, 2))):
        tokens = draw(st.sampled_from([1, 15, 31, 32, 33]))
        documents.append((tokens, draw(st.lists(st.integers(0, tokens), min_size=1, max_size=2))))
    return {
        "documents": documents,
        "rows": draw(st.integers(1, block)),
        "block": block,
        "groups": draw(st.integers(1, 2)),
        "ratio": draw(st.integers(1, 3)),
        "size": draw(st.sampled_from([4, 16, 20])),
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 20)),
    }


@settings(max_examples=8, deadline=None)
@given(case=cases())
def test_equals_the_reference(case: dict[str, Any]) -> None:
    causal, window = case.pop("causal"), case.pop("window")
    tensors, places = inputs(**case)
    compare(
        anchored_block_attention_triton, anchored_block_attention_reference, tensors, **places, causal=causal,
        window=window,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes(dtype: torch.dtype) -> None:
    tensors, places = inputs(
        documents=[(40, [40, 3]), (9, [9])], rows=3, block=4, groups=1, ratio=2, size=16, dtype=dtype
    )
    compare(anchored_block_attention_triton, anchored_block_attention_reference, tensors, **places)


def test_more_query_rows_than_a_tile_and_no_block_before_another_document() -> None:
    tensors, places = inputs(documents=[(3, []), (70, [70, 33])], rows=7, block=8, groups=1, ratio=6, size=8)
    compare(anchored_block_attention_triton, anchored_block_attention_reference, tensors, **places)


def test_what_is_not_visible_changes_nothing() -> None:
    tensors, places = inputs(documents=[(20, [8]), (20, [20])], rows=2, block=2, groups=1, ratio=1, size=8)
    with poisoned():
        before = anchored_block_attention_triton(**tensors, **places)
        for name in ("context_key_SGd", "context_value_SGd"):
            tensors[name][8:20] = float("nan")
        assert torch.equal(anchored_block_attention_triton(**tensors, **places)[0], before[0])
        tensors["context_value_SGd"][7] += 1
        assert not torch.equal(anchored_block_attention_triton(**tensors, **places)[0], before[0])


def test_no_blocks() -> None:
    tensors, places = inputs(documents=[(5, [])], rows=2, block=3, groups=1, ratio=2, size=4)
    places = {name: t.long() for name, t in places.items()}
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    with poisoned():
        out = anchored_block_attention_triton(**leaves, **places)
        out.sum().backward()  # type: ignore[no-untyped-call]
    assert out.shape == (0, 2, 2, 4)
    gradient = leaves["context_key_SGd"].grad
    assert gradient is not None
    assert torch.equal(gradient, torch.zeros(5, 1, 4))


def test_tiles_are_seen_by_the_blocks_that_the_mask_names() -> None:
    start, visible = torch.tensor([0, 0, 50, 50, 50]), torch.tensor([0, 33, 1, 40, 16])
    seen = visible_keys(start, visible, rows=1, block=1, context=90, causal=False, window=None)[:, 0, :90]
    first, last = seen_by(start, visible, rows=90, size=16)
    for tile in range(6):
        blocks = seen[:, 16 * tile : 16 * tile + 16].any(dim=1).nonzero().squeeze(1).tolist()
        expected = (blocks[0], blocks[-1] + 1) if blocks else (0, 0)
        assert (int(first[tile]), int(last[tile])) == expected, tile
