"""Precisions, end tokens, layer ids, and that the quick modules compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from specflow_kernels.packed_linear import packed_linear_supported
from torch import nn
from transformers import AutoModelForCausalLM

from specflow.targets.base import TargetError
from specflow.targets.linear import PackingReport, group, packed_product
from specflow.targets.probe import choose_precision, choose_threads
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target

IDS = torch.randint(0, 290, (2, 20), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("tiny"), 0)


def logits(target: Target, ids: torch.Tensor) -> torch.Tensor:
    return target.head(target.forward(ids, target.new_cache(len(ids), ids.shape[1])).last_hidden_BTH)


def test_tiny_target_is_reproducible_and_varied(tmp_path: Path, tiny: Path) -> None:
    again = make_tiny_target(tmp_path / "again", 0)
    other = make_tiny_target(tmp_path / "other", 1)
    name = "model.safetensors"
    assert (tiny / name).read_bytes() == (again / name).read_bytes() != (other / name).read_bytes()
    target = Target.load(tiny, threads=1)
    ids = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Zürich 日本"}], add_generation_prompt=True, return_dict=False
    )
    assert target.tokenizer.decode(ids) == "<|im_start|>user\nZürich 日本<|im_end|>\n<|im_start|>assistant\n"
    assert target.end_ids == {target.tokenizer.convert_tokens_to_ids("<|im_end|>")} == {298}
    assert target.tokenizer.encode("<|unused|>") == [299]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("packed", 2e-3), ("bf16", 5e-2)])
@torch.no_grad()
def test_precisions_against_eager_fp32(tiny: Path, precision: str, tolerance: float) -> None:
    if precision == "packed" and not packed_linear_supported():
        pytest.skip("no fbgemm")
    expected = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager", dtype=torch.float32)(IDS).logits
    target = Target.load(tiny, precision=precision, threads=1)
    error = (logits(target, IDS).float() - expected).abs().max() / expected.abs().max()
    assert error < tolerance
    assert target.precision == precision


@pytest.mark.skipif(not packed_linear_supported(), reason="no fbgemm")
def test_packing_bf16_weights_is_exact_and_reported(tmp_path: Path, tiny: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    make_tiny_target(tmp_path, 0)
    model.save_pretrained(tmp_path)
    packed = Target.load(tmp_path, precision="packed", threads=1)
    dense = Target.load(tmp_path, precision="fp32", threads=1)
    assert packed.packing_report is not None
    assert packed.packing_report.values == sum(
        p.numel() for n, p in model.named_parameters() if n.endswith("proj.weight") or n == "lm_head.weight"
    )
    assert packed.packing_report.inexact <= 0.001 * packed.packing_report.values
    assert packed.packing_report.max_error < 1e-7
    torch.testing.assert_close(logits(packed, IDS), logits(dense, IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not packed_linear_supported(), reason="no fbgemm")
def test_packing_counts_and_refuses() -> None:
    report = PackingReport()
    weight = torch.tensor([[1.0, 1.0 + 2**-12], [2.0**-30, -3.0]])
    product = packed_product(weight, torch.tensor([1.0, 0.0]), report, name="w")
    assert (report.layers, report.values, report.inexact, report.max_abs) == (1, 4, 2, 3.0)
    assert report.max_error == 2**-12
    torch.testing.assert_close(product(torch.tensor([[1.0, 1.0]])), torch.tensor([[3.0, -3.0]]), rtol=0, atol=1e-6)
    with pytest.raises(TargetError, match=r"lm_head: a weight of 7e\+04 does not fit fp16"):
        packed_product(torch.tensor([[7e4]]), None, report, name="lm_head")


def test_grouped_linears_follow_their_input() -> None:
    """Two inputs in a row, out of step calls included: a part never answers for another input."""
    linears = [nn.Linear(6, 3), nn.Linear(6, 2, bias=False), nn.Linear(6, 4)]
    parts = group(linears, lambda weight, bias: lambda x: nn.functional.linear(x, weight, bias))
    a, b = torch.randn(2, 6), torch.randn(2, 6)
    with torch.no_grad():
        for x, order in ((a, (0, 1, 2)), (b, (0, 1)), (a, (1, 2)), (b, (2, 0, 1)), (a, (0,)), (b, (2,))):
            for i in order:
                torch.testing.assert_close(parts[i](x), linears[i](x))


def test_rows_do_not_depend_on_the_batch_beyond_rounding(tiny: Path) -> None:
    target = Target.load(tiny, threads=1)
    together = logits(target, IDS)
    for b in range(2):
        torch.testing.assert_close(together[b], logits(target, IDS[b : b + 1])[0], rtol=1e-5, atol=1e-5)


def test_layer_ids_are_checked(tiny: Path) -> None:
    target = Target.load(tiny, threads=1)
    for wrong in ((3,), (1, 0), (0, 0), (-1,)):
        with pytest.raises(TargetError, match="strictly increasing ids from 0 to 2"):
            target.forward(IDS, target.new_cache(2, 20), layer_ids=wrong)


def test_outputs_may_be_trained_on(tiny: Path) -> None:
    target = Target.load(tiny, threads=1)
    output = target.forward(IDS, target.new_cache(2, 20), layer_ids=(0, 1))
    assert output.features_BTKH is not None
    assert output.features_BTKH.shape == (2, 20, 2, 64)
    scale = torch.ones(64, requires_grad=True)
    for tensor in (
        output.features_BTKH,
        output.last_hidden_BTH,
        target.embed(IDS),
        target.head(output.last_hidden_BTH),
    ):
        (tensor[..., :64] * scale).sum().backward()
    assert scale.grad is not None


def test_probes_choose_among_the_possible() -> None:
    threads = torch.get_num_threads()
    assert choose_threads() >= 1
    assert torch.get_num_threads() == threads
    assert choose_precision(64, 128) in {"fp32", "bf16", "packed"}


def test_unknown_precision(tiny: Path) -> None:
    with pytest.raises(TargetError, match="expected one of fp32"):
        Target.load(tiny, precision="int8")


@pytest.mark.skipif(not packed_linear_supported(), reason="no fbgemm")
def test_packed_product_of_a_single_row_and_the_limit_of_exactness() -> None:
    # bf16 has 8 significant bits: from 2**-17 up the last of them is at least fp16's smallest step, 2**-24.
    weight = torch.tensor([[2.0**-17 * (1 + 127 / 128), 1.0, -3.0], [2.0**-18 * (1 + 127 / 128), 0.5, 2.0]])
    assert torch.equal(weight.bfloat16().float(), weight)
    report = PackingReport()
    product = packed_product(weight, None, report, name="w")
    assert (report.inexact, report.max_error) == (1, 2.0**-25)
    assert product(torch.tensor([0.0, 1.0, 2.0])).tolist() == [-5.0, 4.5]
    assert product(torch.tensor([[0.0, 1.0, 2.0]])).tolist() == [[-5.0, 4.5]]
