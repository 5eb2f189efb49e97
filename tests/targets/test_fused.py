"""What is fused per family, that it computes the same, and that what computes something else is left alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, apply_rotary_pos_emb

from specflow.targets.attention import AttentionPass
from specflow.targets.fused import FusedAttention, FusedMLP, fused_blocks
from specflow.targets.linear import GroupedLinear, dense_product
from specflow.targets.target import Target
from tests.targets.model_zoo import FAMILIES, make_model

BOTH = {"llama", "qwen2", "qwen3", "mistral"}
MLP_ONLY = {"gemma2", "gemma3_text", "olmo2"}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_fused(tmp_path: Path, family: str) -> None:
    target = Target.load(make_model(tmp_path, family), threads=1)
    count = Counter(type(module) for module in target._model.modules())
    assert count[FusedAttention] == (4 if family in BOTH else 0)
    assert count[FusedMLP] == (4 if family in BOTH | MLP_ONLY else 0)
    assert count[GroupedLinear] == (12 if family in MLP_ONLY else 0)


def test_mlps_that_compute_something_else_are_left_alone(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_model(tmp_path, "llama"), dtype=torch.float32)
    odd, swapped = model.model.layers[1].mlp, model.model.layers[2].mlp

    class Scaled(LlamaMLP):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(x) * 1.001
            return out

    class Swapped(LlamaMLP):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))
            return out

    odd.__class__, swapped.__class__ = Scaled, Swapped
    names = {name for name, _ in fused_blocks(model, lambda weight, bias, name: dense_product(weight, bias))}
    assert {name for name in names if name.endswith("mlp")} == {"model.layers.0.mlp", "model.layers.3.mlp"}


def test_subclasses_of_known_attention_are_left_alone(tmp_path: Path) -> None:
    """A subclass may depend on positions that no probe reaches."""
    model = AutoModelForCausalLM.from_pretrained(make_model(tmp_path, "qwen3"), dtype=torch.float32)
    attention = model.model.layers[0].self_attn
    attention.__class__ = type("LongScaled", (type(attention),), {})
    names = {name for name, _ in fused_blocks(model, lambda weight, bias, name: dense_product(weight, bias))}
    assert "model.layers.0.self_attn" not in names
    assert "model.layers.1.self_attn" in names


def test_rotation_equals_transformers() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(2, heads, 5, 8, generator=generator) for heads in (4, 2))
    angles = torch.randn(2, 5, 8, generator=generator)
    cos, sin = angles.cos(), angles.sin()
    expected = torch.cat(apply_rotary_pos_emb(query, key, cos, sin), dim=1)
    found = AttentionPass([0, 3], 5, torch.device("cpu"))
    both = torch.cat((query, key), dim=1).transpose(1, 2)
    torch.testing.assert_close(found.rotate(both, cos, sin).transpose(1, 2), expected, rtol=1e-6, atol=1e-6)
    other = found.rotate(both, sin, cos).transpose(1, 2)  # other angles in the same pass are not mixed up
    torch.testing.assert_close(other, torch.cat(apply_rotary_pos_emb(query, key, sin, cos), 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("outputs", "inputs"), [(7, 3), (3, 7)])
def test_dense_products_do_not_change_their_weight(outputs: int, inputs: int) -> None:
    linear = nn.Linear(inputs, outputs).requires_grad_(False)
    before = linear.weight.clone()
    rows = torch.randn(4, inputs)
    product = dense_product(linear.weight, linear.bias)
    torch.testing.assert_close(product(rows), linear(rows), rtol=1e-6, atol=1e-6)
    assert linear.weight.is_contiguous()
    assert torch.equal(linear.weight, before)
