"""What every operator has to bear: no requests, narrow dtypes, logits of minus infinity, numbers that are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specflow_kernels.allocate_budget.launching import allocate_budget_triton
from specflow_kernels.allocate_budget.reference import allocate_budget_reference
from specflow_kernels.anchored_block_attention.differentiable import anchored_block_attention_triton
from specflow_kernels.build_tree.launching import build_tree_triton
from specflow_kernels.build_tree.operator import make as make_tree
from specflow_kernels.build_tree.reference import build_tree_reference
from specflow_kernels.catalogue import NAMES, load
from specflow_kernels.commit_path.launching import commit_path_triton
from specflow_kernels.commit_path.reference import commit_path_reference
from specflow_kernels.grouped_dynamic_conv.differentiable import grouped_dynamic_conv_triton
from specflow_kernels.grouped_dynamic_conv.reference import grouped_dynamic_conv_reference
from specflow_kernels.grouped_dynamic_conv.vectorised import grouped_dynamic_conv_vectorised
from specflow_kernels.linear_distillation_loss.differentiable import linear_distillation_loss_triton
from specflow_kernels.markov_walk.launching import markov_walk_triton
from specflow_kernels.markov_walk.reference import markov_walk_reference
from specflow_kernels.operator import flatten
from specflow_kernels.selector.launching import selector_lattice_triton, selector_walk_triton
from specflow_kernels.selector.reference import selector_lattice_reference, selector_walk_reference
from specflow_kernels.ttt_attention.differentiable import ttt_attention_triton
from specflow_kernels.verify_chain.launching import verify_chain_triton
from specflow_kernels.verify_chain.reference import verify_chain_reference
from specflow_kernels.verify_tree.launching import verify_tree_triton
from specflow_kernels.verify_tree.reference import verify_tree_reference
from torch import Tensor

from tests.kernels.interpreted import test_anchored_block_attention as anchored
from tests.kernels.interpreted import test_dflash2 as dflash2
from tests.kernels.interpreted import test_linear_distillation_loss as distillation
from tests.kernels.interpreted import test_markov_walk as markov
from tests.kernels.interpreted import test_ttt_attention as ttt
from tests.kernels.interpreted import test_verification as verification
from tests.kernels.interpreted.comparing import TOLERANCE, compare, poisoned

CPU = torch.device("cpu")
INFINITY, NAN = float("inf"), float("nan")
NARROW = (torch.bfloat16, torch.float16)


def in_dtype(case: dict[str, Any], dtype: torch.dtype, *names: str) -> dict[str, Any]:
    return {**case, **{name: case[name].to(dtype) for name in names}}


def same(kernel: Any, reference: Any, case: dict[str, Any]) -> None:
    """Bit for bit."""
    with poisoned():
        found = flatten(kernel(**case))
    for one, other in zip(found, flatten(reference(**case)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


EMPTY: dict[str, tuple[str, ...]] = {
    "accept_greedy": ("draft_BM", "target_BR"),
    "verify_chain": ("draft_BM", "target_BRV", "greedy_B", "coins_BR", "q_BMV"),
    "verify_tree": ("tokens_BD", "child_BD", "sibling_BD", "target_BDV", "greedy_B", "coins_BD"),
    "build_tree": ("anchor_B", "scores_BX", "tokens_BX", "parent_BX"),
    "allocate_budget": ("survival_BM",),
    "compact_rows": ("rows_BRH", "lengths_B"),
    "scatter_rows": ("lengths_B",),
    "commit_path": ("start_B", "path_BP"),
    "grouped_dynamic_conv": ("x_NBH", "delta_NBtG"),
    "markov_walk": ("base_BMV", "anchor_B", "greedy_B", "temperature_B", "seed_B"),
    "selector_lattice": ("unary_NMK", "candidates_NMK", "anchor_N", "hidden_NMr"),
    "selector_walk": ("lattice_NMKK", "candidates_NMK", "greedy_N", "temperature_N", "coins_NM"),
    "quantize_features": ("rows",),
    "dequantize_features": ("codes", "scales"),
}
"""Arguments of the first example that lose all their requests, blocks or rows."""
ELSEWHERE = {"anchored_block_attention", "ttt_attention", "linear_distillation_loss"}
"""Compared without rows by their own tests; the last one's kernel is not chosen then."""


def test_no_operator_is_left_out() -> None:
    assert EMPTY.keys() | ELSEWHERE == set(NAMES)


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_do(name: str) -> None:
    """The public function on the CPU and the kernel give the same empty results, or zeros where rows are asked for."""
    operator = load(name)
    whole = operator.cases[0].make(torch.device("meta"))
    # Sizes as in the example, memory only where something is left.
    case = {
        key: torch.zeros((0, *value.shape[1:]), dtype=value.dtype)
        if isinstance(value, Tensor) and key in EMPTY[name]
        else _small(value)
        for key, value in whole.items()
    }
    if "capacity" in case:
        case["capacity"] = 3  # every row of it costs the interpreter time
    same(operator.kernel, operator.public, case)
    same(operator.public, operator.reference, case)


def _small(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value


def test_the_public_losses_of_no_rows() -> None:
    tensors, rest = distillation.inputs(rows=0, width=4, vocabulary=9)
    for function in (load("linear_distillation_loss").public, linear_distillation_loss_triton):
        with poisoned():
            found = function(**tensors, **rest)
        assert all(part.shape == (0,) for part in found)


@pytest.mark.parametrize("dtype", NARROW)
def test_convolution_in_narrow_dtypes(dtype: torch.dtype) -> None:
    tensors = dflash2.conv_inputs(blocks=2, block=4, groups=3, size=4, taps=2, dtype=dtype)
    compare(grouped_dynamic_conv_triton, grouped_dynamic_conv_reference, tensors)
    compare(grouped_dynamic_conv_vectorised, grouped_dynamic_conv_reference, tensors)


def test_losses_in_half_precision() -> None:
    tensors, rest = distillation.inputs(rows=5, width=16, vocabulary=70, dtype=torch.float16)
    compare(
        lambda **given: distillation.kernel_in(torch.float16, **given), distillation.reference, tensors, **rest,
        multiplier=0.25,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
def test_lattice_in_narrow_dtypes(dtype: torch.dtype) -> None:
    case = dflash2.selector_inputs(3, blocks=2, proposals=3, kept=5, rank=17)
    case = in_dtype(case, dtype, "hidden_NMr", "predecessors_Vr", "successors_Vr")
    with poisoned():
        found = selector_lattice_triton(**case)
    exact = {name: t.double() if t.is_floating_point() else t for name, t in case.items()}
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), selector_lattice_reference(**exact), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", NARROW)
def test_sequential_head_in_narrow_dtypes(dtype: torch.dtype) -> None:
    case = markov.inputs(5, batch=3, proposals=3, vocabulary=130, rank=16)
    case = in_dtype(case, dtype, "base_BMV", "predecessors_Vr", "successors_Vr")
    with poisoned():
        found = markov_walk_triton(**case)
    wanted = markov_walk_reference(**case)
    assert torch.equal(found.tokens_BM, wanted.tokens_BM)
    torch.testing.assert_close(found.logits_BMV, wanted.logits_BMV, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("drawn", [True, False])
def test_chains_in_narrow_dtypes(dtype: torch.dtype, drawn: bool) -> None:
    for seed in range(4):
        case = verification.chain(seed, batch=3, proposals=3, vocabulary=17, extra=0, drawn=drawn)
        names = ("target_BRV", "q_BMV") if drawn else ("target_BRV",)  # 64ths: exact in either
        same(verify_chain_triton, verify_chain_reference, in_dtype(case, dtype, *names))


@pytest.mark.parametrize("dtype", NARROW)
def test_trees_in_narrow_dtypes(dtype: torch.dtype) -> None:
    for seed in range(4):
        case = verification.tree(seed, batch=2, slots=6, vocabulary=17, depth=3)
        same(verify_tree_triton, verify_tree_reference, in_dtype(case, dtype, "target_BDV"))


@pytest.mark.parametrize("dtype", [*NARROW, torch.int8])
def test_path_in_other_dtypes(dtype: torch.dtype) -> None:
    found = torch.arange(2 * 8 * 5).view(2, 8, 5).to(dtype)
    wanted = found.clone()
    start, path = torch.tensor([0, 4]), torch.tensor([[0, 2, 3], [0, 3, -1]])
    commit_path_triton(found, start, path)
    commit_path_reference(wanted, start, path)
    assert torch.equal(found, wanted)
    assert found[:, 5].tolist() == [[35, 36, 37, 38, 39], [75, 76, 77, 78, 79]]


@pytest.mark.parametrize("dtype", NARROW)
def test_scores_in_narrow_dtypes(dtype: torch.dtype) -> None:
    """Rounded scores, so that some are equal."""
    torch.manual_seed(2)
    case = in_dtype(make_tree(CPU, batch=2, branches=3, levels=3, slots=9), dtype, "scores_BX")
    same(build_tree_triton, build_tree_reference, case)
    survival = torch.rand(4, 3).to(dtype).float().cumprod(dim=1)
    same(allocate_budget_triton, allocate_budget_reference, {"survival_BM": survival, "budget": torch.tensor(7)})


def test_trees_of_logits_with_minus_infinity_and_ties() -> None:
    case = verification.tree(1, batch=3, slots=5, vocabulary=4, depth=3)
    case["greedy_B"] = torch.ones(3, dtype=torch.bool)
    case["target_BDV"] = torch.full((3, 5, 4), -INFINITY)
    case["target_BDV"][1, :, 2:] = 1.0
    case["target_BDV"][2, 0, 3] = INFINITY
    same(verify_tree_triton, verify_tree_reference, case)


def test_scores_of_minus_infinity_come_last() -> None:
    case = make_tree(CPU, batch=2, branches=2, levels=2, slots=5)
    case["scores_BX"][0, 3:] = -INFINITY  # fewer finite ones than slots
    case["scores_BX"][1] = -INFINITY
    same(build_tree_triton, build_tree_reference, case)


def test_walks_over_logits_of_minus_infinity() -> None:
    case = markov.inputs(1, batch=4, proposals=2, vocabulary=130, rank=4)
    case["greedy_B"] = torch.tensor([True, False, True, False])
    case["base_BMV"][:2, :, 1:] = -INFINITY  # one token is possible
    with poisoned():
        found = markov_walk_triton(**case)
    wanted = markov_walk_reference(**case)
    assert found.tokens_BM[:2].tolist() == [[0, 0]] * 2
    assert torch.equal(found.tokens_BM, wanted.tokens_BM)
    lattice = torch.full((2, 2, 3, 3), -INFINITY)
    lattice[..., 1] = 0.5
    walk = {
        "lattice_NMKK": lattice,
        "candidates_NMK": torch.tensor([4, 7, 9]).expand(2, 2, 3),
        "greedy_N": torch.tensor([True, False]),
        "temperature_N": torch.ones(2),
        "coins_NM": torch.tensor([[0.9, 0.9], [0.0, 0.99]]),
    }
    same(selector_walk_triton, selector_walk_reference, walk)
    with poisoned():
        tokens, q = selector_walk_triton(**walk)
    assert tokens.tolist() == [[7, 7]] * 2
    assert q[..., 1].tolist() == [[1.0, 1.0]] * 2


def test_nan_stays_in_the_rows_that_see_it() -> None:
    """Nothing is hidden: such a row's result is NaN, and no other row's is."""
    tensors, places = anchored.inputs(documents=[(20, [8, 20])], rows=2, block=2, groups=1, ratio=1, size=8)
    tensors["context_key_SGd"][12, 0, 0] = NAN
    with poisoned():
        out = anchored_block_attention_triton(**tensors, **places)
    assert out.isnan().flatten(1).any(dim=1).tolist() == [False, True]
    chains, first_T = ttt.inputs(lengths=[4, 3], depths=1, groups=1, ratio=1, size=8)
    chains["chain_value_CTGd"][0, 2, 0, 0] = NAN
    with poisoned():
        out = ttt_attention_triton(**chains, first_T=first_T)
    assert out.isnan().flatten(1).any(dim=1).tolist() == [False, False, True, *[False] * 4]
    losses, rest = distillation.inputs(rows=3, width=4, vocabulary=70)
    rest["teacher_MT"][1, 0] = NAN
    with poisoned():
        found = linear_distillation_loss_triton(**losses, **rest)
    assert found.kl_M is not None
    assert found.teacher_choice_M is not None
    assert found.kl_M.isnan().tolist() == [False, True, False]
    assert (found.teacher_choice_M < 0).tolist() == [False, True, False]
    assert not bool(found.agreement_M[1])


def test_the_products_attention_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the blocks' attention is the kernel; here the choice is made for it."""
    from specflow_kernels import anchored_block_attention as operator
    from specflow_kernels.choice import Choice

    from specflow.drafters.dflash import attention
    from specflow.drafters.dflash.chunked_attention import Rule

    tensors, places = anchored.inputs(documents=[(9, [9, 4]), (20, [20])], rows=3, block=4, groups=2, ratio=2, size=8)
    spans = [
        attention.Span(context=(0, 9), blocks=(0, 2)), attention.Span(context=(9, 29), blocks=(2, 3)),
    ]  # fmt: skip
    rule = Rule(causal=True, window=6)
    leaves = [t.requires_grad_() for t in tensors.values()]
    wanted = attention.block_attention(*leaves, spans=spans, visible_N=places["visible_N"], rule=rule)
    expected = torch.autograd.grad(wanted.square().sum(), leaves)
    for module in (operator, attention):
        monkeypatch.setattr(module, "explain", lambda *_, **__: Choice(True, "it is asked for"))
    with poisoned():
        found = attention.block_attention(*leaves, spans=spans, visible_N=places["visible_N"], rule=rule)
        gradients = torch.autograd.grad(found.square().sum(), leaves)
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)
