"""Parts of the decoder layers of every method; parameter names are those that serving engines load."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from specflow.drafters.fused import gated, rms_norm


class Heads(Protocol):
    """The sizes that attention is built with."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in fp32, returned in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class MLP(nn.Module):
    """Gated by SiLU, without biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))
        return out


class Attention(nn.Module):
    """The maps of an attention without biases; the attention itself is the method's."""

    def __init__(self, sizes: Heads, *, width: int) -> None:
        """``width``: of what query, key and value are made of."""
        super().__init__()
        queries, keys = (n * sizes.head_dim for n in (sizes.num_heads, sizes.num_kv_heads))
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, sizes.hidden_size, bias=False)

    def qkv(self) -> Tensor:
        """``[queries + 2 keys, width]``: the three maps, one above the other."""
        return torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))


class StateLayer(nn.Module):
    """A decoder layer over the state of a drafter that feeds itself (EAGLE and its kin). T rows."""

    self_attn: Attention
    post_attention_layernorm: RMSNorm
    mlp: MLP

    def normed(self, state_TH: Tensor) -> Tensor:
        """What query, key and value are made of."""
        raise NotImplementedError

    def after_attention(self, state_TH: Tensor, mixed_TX: Tensor) -> Tensor:
        x = state_TH + self.self_attn.o_proj(mixed_TX)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
