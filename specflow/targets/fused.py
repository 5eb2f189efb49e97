"""Attention and MLP of a decoder layer in few calls: at one row a step waits as long for Python as for arithmetic.

Legend: B requests, T rows of a pass, H hidden size, Q query heads, N key heads, D head size, I width of the MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from specflow.targets.attention import AttentionPass, attention
from specflow.targets.linear import Product, joined

MakeProduct = Callable[[Tensor, Tensor | None, str], Product]
"""From a weight ``[O, I]``, a bias and a name for messages."""


class FusedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))`` with gate and up as one product."""

    def __init__(self, original: Any, make: MakeProduct, name: str) -> None:
        super().__init__()
        gate, up, down = original.gate_proj, original.up_proj, original.down_proj
        self.width = gate.out_features
        self.act = original.act_fn
        self.gate_up = make(*joined((gate, up)), f"{name}.gate_proj")
        self.down = make(down.weight, down.bias, f"{name}.down_proj")

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up(x)
        return self.down(self.act(both[..., : self.width]).mul_(both[..., self.width :]))


class FusedAttention(nn.Module):
    """Rotary attention over the engine's cache: one product for query, key and value, one rotation for both."""

    def __init__(self, original: Any, make: MakeProduct, name: str) -> None:
        super().__init__()
        self.head_dim, self.scaling, self.layer_idx = original.head_dim, original.scaling, original.layer_idx
        self.query_heads = original.q_proj.out_features // self.head_dim
        self.key_heads = original.k_proj.out_features // self.head_dim
        self.window = _window(original)
        self.q_norm, self.k_norm = getattr(original, "q_norm", None), getattr(original, "k_norm", None)
        self.project = make(*joined((original.q_proj, original.k_proj, original.v_proj)), f"{name}.q_proj")
        self.output = make(original.o_proj.weight, original.o_proj.bias, f"{name}.o_proj")

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        specflow_pass: AttentionPass | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        if specflow_pass is None:
            raise RuntimeError("the model hands no keyword arguments to its attention")
        batch, rows, _hidden = hidden_states.shape
        heads_BTND = self.project(hidden_states).view(batch, rows, -1, self.head_dim)
        turned = self.query_heads + self.key_heads
        query_key = specflow_pass.rotate(self._normed(heads_BTND[:, :, :turned]), *position_embeddings).transpose(1, 2)
        value = heads_BTND[:, :, turned:].transpose(1, 2)
        keys, values = cache.update(query_key[:, self.query_heads :], value, self.layer_idx)
        out, _weights = attention(
            self,
            query_key[:, : self.query_heads],
            keys,
            values,
            scaling=self.scaling,
            sliding_window=self.window,
            specflow_pass=specflow_pass,
        )
        return self.output(out.reshape(batch, rows, -1)), None

    def _normed(self, heads_BTND: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return heads_BTND
        query, key = heads_BTND[:, :, : self.query_heads], heads_BTND[:, :, self.query_heads :]
        return torch.cat((self.q_norm(query), self.k_norm(key)), dim=2)


def fused_blocks(model: nn.Module, make: MakeProduct) -> Iterator[tuple[str, nn.Module]]:
    """Names and stand-ins of the modules that can be fused.

    An MLP is taken if it gives the same on random rows, which is all that it can depend on. Attention can also depend
    on positions and lengths that no short probe reaches, so only classes whose whole computation is known are taken.
    """
    known = _known_attention()
    for name, module in model.named_modules():
        if all(isinstance(getattr(module, part, None), nn.Linear) for part in ("gate_proj", "up_proj", "down_proj")):
            if callable(getattr(module, "act_fn", None)) and _same_mlp(module, FusedMLP(module, _plain, name)):
                yield name, FusedMLP(module, make, name)
        elif type(module) in known:
            yield name, FusedAttention(module, make, name)


def _known_attention() -> set[type[nn.Module]]:
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.mistral.modeling_mistral import MistralAttention
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    return {LlamaAttention, MistralAttention, Qwen2Attention, Qwen3Attention}


def _window(original: Any) -> int | None:
    """Mistral reads its sliding window from the config, the others keep it."""
    if type(original).__name__ == "MistralAttention":
        return getattr(original.config, "sliding_window", None)
    return getattr(original, "sliding_window", None)


def _plain(weight_OI: Tensor, bias_O: Tensor | None, name: str) -> Product:
    return lambda x: nn.functional.linear(x, weight_OI, bias_O)


@torch.no_grad()
def _same_mlp(module: Any, fused: FusedMLP) -> bool:
    weight = module.gate_proj.weight
    rows = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    tolerance = 1e-5 if weight.dtype == torch.float32 else 3e-2
    expected = module(rows)
    if not isinstance(expected, Tensor):
        return False
    return torch.allclose(fused(rows), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
