"""``markov_w2`` at decoding: the bias of every token, or the best token without computing every bias.

Legend: m rows of a block, V vocabulary, r rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.linear import frozen_linear

LIKELY = 8
"""Tokens by the uncorrected logits that give the lower bound."""
FEW = 8
"""The bound is used while it leaves at most one in ``FEW`` tokens open; beyond that the whole product is cheaper."""
SLACK = 1e-4
"""Far above rounding of a logit: a token within it of the best is looked at, not ruled out."""
_ROWS = {"fp32": torch.float32, "bf16": torch.bfloat16, "packed": torch.float16}


class BiasTable:
    def __init__(self, table_Vr: Tensor, *, precision: str) -> None:
        self._product = frozen_linear(table_Vr, precision=precision)
        self._rows_Vr = table_Vr.detach().to(_ROWS[precision])
        self._lengths_V = torch.linalg.vector_norm(table_Vr.detach().float(), dim=1) * (1 + 1e-3)

    def bias(self, code_r: Tensor) -> Tensor:
        """``[V]`` fp32."""
        return self._product(code_r.unsqueeze(0))[0]

    def likely(self, base_mV: Tensor) -> Tensor:
        """``[m, k]`` tokens for ``best``, of all rows at once."""
        return base_mV.topk(min(LIKELY, base_mV.shape[1]), dim=1).indices

    def best(self, base_V: Tensor, likely_k: Tensor, code_r: Tensor) -> int:
        """The token with the largest ``base + bias``, the lowest id on ties.

        A bias is at most the product of the lengths of its two vectors. Tokens that even this does not lift over the
        best of ``likely_k`` are out, whatever their bias; of the few others it is computed.
        """
        reached = (base_V[likely_k] + self._of(likely_k, code_r)).max()
        bound_V = torch.addcmul(base_V, self._lengths_V, torch.linalg.vector_norm(code_r))
        open_n = (bound_V >= reached - SLACK).nonzero().squeeze(1)
        if not 0 < open_n.numel() <= max(LIKELY, base_V.numel() // FEW):
            return int((base_V + self.bias(code_r)).argmax())
        return int(open_n[(base_V[open_n] + self._of(open_n, code_r)).argmax()])

    def _of(self, tokens_n: Tensor, code_r: Tensor) -> Tensor:
        return self._rows_Vr[tokens_n].float() @ code_r
