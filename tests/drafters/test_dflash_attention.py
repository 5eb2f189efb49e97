"""Block attention against one dense masked softmax, and what it costs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.drafters.dflash import attention
from specflow.drafters.dflash.attention import Span, block_attention, plan_chunks
from specflow.drafters.dflash.chunked_attention import EVERYTHING, Chunk, Rule, attend_in_chunks

torch.set_num_threads(1)
GROUPS, SHARED, SIZE = 2, 2, 8
Documents = list[tuple[int, list[int]]]
"""Context rows and visible rows of each block, per document."""
documents = st.lists(
    st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), max_size=5))), max_size=4
)


def layout(made: Documents) -> tuple[list[Span], Tensor]:
    spans, row, block = [], 0, 0
    for length, visible in made:
        spans.append(Span(context=(row, row + length), blocks=(block, block + len(visible))))
        row, block = row + length, block + len(visible)
    return spans, torch.tensor([v for _, visible in made for v in visible], dtype=torch.int64)


def tensors(made: Documents, *, rows: int, size: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    context, blocks = sum(n for n, _ in made), sum(len(v) for _, v in made)
    shapes = (
        [(blocks, rows, GROUPS * SHARED, SIZE)] + [(blocks, size, GROUPS, SIZE)] * 2 + [(context, GROUPS, SIZE)] * 2
    )
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def dense(
    q: Tensor, k: Tensor, v: Tensor, ck: Tensor, cv: Tensor, spans: list[Span], visible: Tensor, rule: Rule
) -> Tensor:
    """Every row against every context row and every block row, with a mask; heads repeated."""
    blocks, rows, heads, size = q.shape
    keys = torch.cat((ck, k.flatten(0, 1))).repeat_interleave(SHARED, dim=1)
    values = torch.cat((cv, v.flatten(0, 1))).repeat_interleave(SHARED, dim=1)
    seen = torch.zeros(blocks, rows, keys.shape[0], dtype=torch.bool)
    for span in spans:
        for n, r in itertools.product(range(*span.blocks), range(rows)):
            own = int(visible[n]) + k.shape[1] - rows + r  # query rows are the last ones of the block
            oldest = 0 if rule.window is None else max(0, own - rule.window + 1)
            seen[n, r, span.context[0] + min(oldest, int(visible[n])) : span.context[0] + int(visible[n])] = True
            last = own - int(visible[n]) + 1 if rule.causal else k.shape[1]
            seen[n, r, ck.shape[0] + n * k.shape[1] : ck.shape[0] + n * k.shape[1] + last] = True
    scores = torch.einsum("nrad,sad->nras", q, keys) / size**0.5
    weights = scores.masked_fill(~seen[:, :, None, :], float("-inf")).softmax(-1)
    return torch.einsum("nras,sad->nrad", weights, values).reshape(blocks, rows, heads * size)


def both(
    made: Documents, *, rows: int, size: int, dtype: torch.dtype, limit: int, rule: Rule = EVERYTHING
) -> tuple[list[Tensor], list[Tensor]]:
    """Result and gradients of ours in ``dtype`` and of the dense form in float64."""
    spans, visible = layout(made)
    results = []
    for kind, function in ((dtype, block_attention), (torch.float64, None)):
        inputs = tensors(made, rows=rows, size=size, seed=len(made), dtype=dtype)
        inputs = [t.detach().to(kind).requires_grad_() for t in inputs]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "CHUNK_SCORES", limit)
            if function:
                out = function(*inputs, spans=spans, visible_N=visible, rule=rule)
            else:
                out = dense(*inputs, spans, visible, rule)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
        (out.double() * weights).sum().backward()
        results.append([out.detach().double(), *(t.grad.double() for t in inputs if t.grad is not None)])
    return results[0], results[1]


@settings(deadline=None, max_examples=60)
@given(
    documents,
    st.integers(1, 4),
    st.sampled_from([1, 200, 1 << 20]),
    st.builds(Rule, window=st.sampled_from([None, 4, 5, 9]), causal=st.booleans()),
)
def test_float64_equals_a_dense_mask_for_any_documents_and_chunks(
    made: Documents, rows: int, limit: int, rule: Rule
) -> None:
    found, expected = both(made, rows=rows, size=4, dtype=torch.float64, limit=limit, rule=rule)
    if sum(len(visible) for _, visible in made):
        assert len(found) == len(expected) == 6
    for ours, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_narrower_inputs_are_as_good_as_their_products(dtype: torch.dtype, tolerance: float) -> None:
    made: Documents = [(40, [3, 17, 17, 40]), (0, [0]), (25, [1, 25])]
    found, expected = both(made, rows=3, size=4, dtype=dtype, limit=500)
    for ours, reference in zip(found, expected, strict=True):
        assert (ours - reference).norm() <= tolerance * reference.norm()


def test_autocast_gives_what_narrow_inputs_give() -> None:
    made: Documents = [(30, [4, 30])]
    spans, visible = layout(made)
    wide = tensors(made, rows=3, size=4, seed=0, dtype=torch.float32)
    narrow = [t.detach().bfloat16() for t in wide]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = block_attention(*wide, spans=spans, visible_N=visible)
    found.float().sum().backward()  # outside of autocast, as the trainer does
    torch.testing.assert_close(found, block_attention(*narrow, spans=spans, visible_N=visible), rtol=0, atol=0)
    assert all(t.grad is not None and t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in wide)


@settings(deadline=None)
@given(documents, st.integers(1, 20), st.integers(1, 300))
def test_chunks_cover_every_block_once_within_the_limit(made: Documents, per_row: int, limit: int) -> None:
    spans, visible = layout(made)
    chunks = list(plan_chunks(spans, visible.tolist(), scores_per_row=per_row, limit=limit))
    assert [n for c in chunks for n in range(*c.blocks)] == list(range(visible.numel()))
    for chunk in chunks:
        (span,) = [s for s in spans if s.blocks[0] <= chunk.blocks[0] < s.blocks[1]]
        assert chunk.blocks[1] <= span.blocks[1]
        assert chunk.start == span.context[0]
        assert list(chunk.visible) == visible[slice(*chunk.blocks)].tolist()
        assert len(chunk.visible) == 1 or len(chunk.visible) * per_row * max(chunk.visible) <= limit


def test_computed_scores_stay_near_the_visible_ones() -> None:
    """512 anchors over 4096 rows: one chunk of all of them would compute twice what is visible."""
    visible = list(range(8, 4097, 8))
    span = Span(context=(0, 4096), blocks=(0, len(visible)))
    chunks = list(plan_chunks([span], visible, scores_per_row=8 * 16))
    computed = sum(len(c.visible) * max(c.visible) for c in chunks)
    assert computed < 1.05 * sum(visible)


def test_a_window_bounds_the_work() -> None:
    """As above with a window of 64: a block costs what it sees, not what lies before it."""
    visible = list(range(8, 4097, 8))
    span, rule = Span(context=(0, 4096), blocks=(0, len(visible))), Rule(window=64)
    chunks = list(plan_chunks([span], visible, scores_per_row=8 * 16, limit=1 << 16, rule=rule))
    computed = sum(len(c.visible) * (c.rows.stop - c.rows.start) for c in chunks)
    assert computed < 8 * 63 * len(visible)
    assert [n for c in chunks for n in range(*c.blocks)] == list(range(len(visible)))


def test_repeats_bit_for_bit() -> None:
    def run() -> list[Tensor]:
        return both([(40, [3, 17, 40])], rows=3, size=4, dtype=torch.float32, limit=300)[0]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_nothing_of_the_size_of_the_scores_is_kept() -> None:
    """What the graph holds on to is the five inputs."""
    made: Documents = [(64, [16, 32, 64])]
    spans, visible = layout(made)
    chunks = tuple(plan_chunks(spans, visible.tolist(), scores_per_row=16))
    inputs = [t.transpose(0, -2).contiguous() for t in tensors(made, rows=3, size=4, seed=0, dtype=torch.float32)]
    kept: list[Any] = []
    q = torch.randn(GROUPS, 3, 6, SIZE, requires_grad=True)
    k, v = (torch.randn(GROUPS, 3, 4, SIZE, requires_grad=True) for _ in range(2))
    ck, cv = inputs[3], inputs[4]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        attend_in_chunks(q, k, v, ck, cv, chunks)
    assert [t.shape for t in kept] == [t.shape for t in (q, k, v, ck, cv)]


def test_a_chunk_knows_its_rows() -> None:
    assert Chunk(blocks=(2, 4), start=10, visible=(3, 5)).rows == slice(10, 15)
    assert Chunk(blocks=(2, 4), start=10, visible=(3, 5), first=2).rows == slice(12, 15)
