"""Distillation losses through a head: the kernels against whole rows of logits in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.linear_distillation_loss import differentiable, linear_distillation_loss
from specflow_kernels.linear_distillation_loss.differentiable import linear_distillation_loss_triton
from specflow_kernels.linear_distillation_loss.reference import linear_distillation_loss_reference
from torch import Tensor

from tests.kernels.interpreted.comparing import compare, poisoned


def inputs(
    *, rows: int, width: int, vocabulary: int, whole: int | None = None, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Any], dict[str, Any]]:
    """``whole``: size of the teacher's vocabulary, where the drafter's is a part of it."""
    generator = torch.Generator().manual_seed(2)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    tensors = {"hidden_MH": random(rows, width), "head_VH": random(vocabulary, width)}
    rest: dict[str, Any] = {
        "labels_M": torch.randint(vocabulary, (rows,), generator=generator),
        "teacher_MT": random(rows, width if whole is None else width + 3),
    }
    if whole is not None:
        rest["teacher_head_UT"] = random(whole, width + 3)
        rest["draft_ids_V"] = torch.randperm(whole, generator=generator)[:vocabulary].sort().values
    return tensors, rest


def kernel_in(dtype: torch.dtype, **given: Any) -> Any:
    """The kernel with what has no gradient in ``dtype``; the reference gets float64 for all."""
    cast: dict[str, Any] = {
        n: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for n, t in given.items()
    }
    return linear_distillation_loss_triton(**cast)


def reference(**given: Any) -> Any:
    cast: dict[str, Any] = {
        n: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for n, t in given.items()
    }
    return linear_distillation_loss_reference(**cast)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 31, 33]),
    width=st.sampled_from([1, 8, 33]),
    vocabulary=st.sampled_from([1, 2, 63, 64, 65, 130]),
    extra=st.none() | st.integers(0, 9),
    soft_cap=st.none() | st.floats(1.0, 9.0),
    multiplier=st.sampled_from([1.0, 0.25]),
)
def test_equals_the_reference(
    rows: int, width: int, vocabulary: int, extra: int | None, soft_cap: float | None, multiplier: float
) -> None:
    whole = None if extra is None else vocabulary + extra
    tensors, rest = inputs(rows=rows, width=width, vocabulary=vocabulary, whole=whole)
    compare(
        lambda **given: kernel_in(torch.float32, **given), reference, tensors, **rest, soft_cap=soft_cap,
        multiplier=multiplier,
    )  # fmt: skip


def test_bfloat16() -> None:
    tensors, rest = inputs(rows=5, width=16, vocabulary=70, dtype=torch.bfloat16)
    compare(lambda **given: kernel_in(torch.bfloat16, **given), reference, tensors, **rest, multiplier=0.25)


@pytest.mark.parametrize("given_too", ["labels", "teacher"])
def test_one_of_label_and_teacher_is_enough(given_too: str) -> None:
    tensors, rest = inputs(rows=3, width=8, vocabulary=20)
    rest["teacher_MT" if given_too == "labels" else "labels_M"] = None
    with poisoned():
        found = linear_distillation_loss_triton(**tensors, **rest)
    wanted = linear_distillation_loss_reference(**tensors, **rest)
    for name, one, other in zip(found._fields, found, wanted, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5, msg=name)
    if given_too == "labels":
        with pytest.raises(ValueError, match="teacher's hidden states"):
            _ = found.overlap_M


def test_parts_are_what_their_formulas_say() -> None:
    tensors, rest = inputs(rows=4, width=8, vocabulary=90)
    p = (rest["teacher_MT"] @ tensors["head_VH"].T).softmax(dim=1)
    q = (tensors["hidden_MH"] @ tensors["head_VH"].T).softmax(dim=1)
    with poisoned():
        found = linear_distillation_loss_triton(**tensors, **rest)
    torch.testing.assert_close(found.overlap_M, torch.minimum(p, q).sum(dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.soft_ce_M, -(p * q.log()).sum(dim=1), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.agreement_M, p.argmax(dim=1) == q.argmax(dim=1))


def test_ties_go_to_the_lowest_and_nan_has_no_choice() -> None:
    head = torch.zeros(200, 2)
    head[[70, 71, 150], 0] = 1.0  # equal logits within a tile of the vocabulary and across tiles
    hidden = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [float("nan"), 0.0]])
    for function in (linear_distillation_loss_triton, linear_distillation_loss_reference):
        with poisoned():
            found = function(hidden, head, labels_M=torch.tensor([0, 0, 0]))
        assert found.choice_M.tolist() == [70, 0, -1]
        assert found.ce_M is not None
        assert found.ce_M.isnan().tolist() == [False, False, True]


def test_slices_and_splits_of_the_vocabulary_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differentiable, "SLOPES", 1)
    monkeypatch.setattr(differentiable, "PROGRAMS", 2)
    tensors, rest = inputs(rows=3, width=4, vocabulary=200)
    compare(lambda **given: kernel_in(torch.float32, **given), reference, tensors, **rest)


def test_shapes_are_checked_all_at_once() -> None:
    tensors, rest = inputs(rows=3, width=4, vocabulary=20)
    rest["labels_M"] = rest["labels_M"][:2]
    with pytest.raises(ValueError, match=r"labels \(2,\), expected \(3,\); soft cap"):
        linear_distillation_loss(**tensors, **rest, soft_cap=-1.0)
