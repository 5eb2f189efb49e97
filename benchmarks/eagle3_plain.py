"""EAGLE-3 training as one would first write it in PyTorch: a dense mask over all rows of all depths, whole logits.

One document at a time, gradients accumulated, autograd throughout. The target's distribution of a document is computed
once and shared by the depths. Every row is computed at every depth, and masked in the loss.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from eagle3_case import Case, Made
from torch import Tensor, nn

from specflow.drafters.eagle3.network import Eagle3Network


class Plain:
    """Loss and gradients of a step, with the parameters of ``network``."""

    def __init__(self, network: Eagle3Network, case: Case, made: Made) -> None:
        self._network, self._case, self._made = network, case, made

    def run(self) -> float:
        targets = [self._target(last_TH.float()) for last_TH in self._made.last_DTH]
        kept = sum(float(mask.sum()) for _, mask in targets)
        total = 0.0
        for ids_T, features, (p, mask) in zip(self._made.ids_DT, self._made.features_DTKH, targets, strict=True):
            loss = self._loss(ids_T, features.float(), p, mask) / kept
            loss.backward()
            total += float(loss.detach())
        return total

    @torch.no_grad()
    def _target(self, last_TH: Tensor) -> tuple[Tensor, Tensor]:
        """``[T, D]`` the distribution of the token after each row, and whether it counts."""
        logits = last_TH @ self._made.table_VH.T
        inside = torch.isin(logits.argmax(1), self._made.draft_ids_D)
        place = torch.arange(1, self._case.length + 1)
        counted = (place >= max(2, self._case.prompt)) & (place < self._case.length)
        return logits[:, self._made.draft_ids_D].softmax(1), inside & counted

    def _loss(self, ids_T: Tensor, features_TKH: Tensor, p_TD: Tensor, mask_T: Tensor) -> Tensor:
        case, net, length = self._case, self._network, self._case.length
        layer, attention = net.midlayer, net.midlayer.self_attn
        state = net.fc(features_TKH.flatten(1))
        keys: list[Tensor] = []
        values: list[Tensor] = []
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        total = torch.zeros(())
        for depth in range(case.depths):
            tokens = F.pad(ids_T[depth + 1 :], (0, depth + 1))
            embeds = F.embedding(tokens, self._made.table_VH)
            read = torch.cat((_norm(embeds, layer.input_layernorm), _norm(state, layer.hidden_norm)), dim=1)
            query = _rotated(self._heads(attention.q_proj(read)), depth)
            keys.append(_rotated(self._heads(attention.k_proj(read)), depth))
            values.append(self._heads(attention.v_proj(read)))
            if depth:
                seen = torch.cat((seen, torch.eye(length, dtype=torch.bool)), dim=1)
            mixed = F.scaled_dot_product_attention(
                query.unsqueeze(0),
                torch.cat(keys, dim=1).unsqueeze(0),
                torch.cat(values, dim=1).unsqueeze(0),
                attn_mask=seen,
                enable_gqa=True,
            )
            state = state + attention.o_proj(mixed[0].transpose(0, 1).reshape(length, -1))
            inner = _norm(state, layer.post_attention_layernorm)
            mlp = layer.mlp
            state = state + mlp.down_proj(F.silu(mlp.gate_proj(inner)) * mlp.up_proj(inner))
            log_q = net.lm_head(_norm(state, net.norm)).log_softmax(1)
            # Row t predicts the token at t + 2 + depth, which the row at t + 1 + depth of the target judges.
            rows = length - 1 - depth
            losses = -(p_TD[depth + 1 :] * log_q[:rows]).sum(1)
            total = total + 0.8**depth * (losses * mask_T[depth + 1 :]).sum()
        return total

    def _heads(self, x: Tensor) -> Tensor:
        """``[A, T, d]``."""
        return x.view(x.shape[0], -1, self._case.head_dim).transpose(0, 1)


def _norm(x: Tensor, norm: nn.Module) -> Tensor:
    weight = norm.get_parameter("weight")
    return F.rms_norm(x, weight.shape, weight, eps=1e-5)


def _rotated(x_ATd: Tensor, first: int) -> Tensor:
    half = x_ATd.shape[-1] // 2
    rates = 1e5 ** (-torch.arange(half) / half)
    angles = (torch.arange(x_ATd.shape[1]) + first).unsqueeze(1) * rates
    a, b = x_ATd.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
