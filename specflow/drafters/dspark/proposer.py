"""DSpark at decoding time: DFlash's pass over the block, then a walk along it with corrected logits.

Legend: m proposals, H hidden size, r rank of the correction, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from specflow.drafters.base import Draw, Proposal
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.drafters.dspark.bias_table import BiasTable
from specflow.drafters.dspark.heads import ConfidenceHead, SequentialHead
from specflow.drafters.dspark.network import DSparkNetwork


class DSparkProposer(DFlashProposer):
    """See ``specflow.drafters.base.Proposer``. The tables are held in the given precision, the steps run in fp32."""

    confidence_m: Tensor | None = None
    """Raw confidence logits of the last round, fp32 ``[m]``; none before the first, or without such a head."""

    def __init__(
        self,
        network: DSparkNetwork,
        *,
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        precision: str = "fp32",
    ) -> None:
        super().__init__(network, embed=embed, head=head, precision=precision)
        tables = network.markov_head
        narrow = torch.float32 if precision == "fp32" else torch.bfloat16
        self._before_Vr = tables.markov_w1.weight.detach().to(narrow)
        self._table = BiasTable(tables.markov_w2.weight, precision=precision)
        # The step's own small matrices; the tables are left out of the copy.
        without: dict[int, object] = {id(tables.markov_w1): None, id(tables.markov_w2): None}
        self._step: SequentialHead = copy.deepcopy(tables, without).requires_grad_(False)
        self._confidence: ConfidenceHead | None = copy.deepcopy(network.confidence_head)

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self.confidence_m = None

    @torch.no_grad()
    def propose(self, anchor: int) -> Tensor:
        """``[m]`` int64: at every row the best token, given those chosen before it; ties go to the lowest id."""
        hidden_mH = self.hidden(anchor)
        base_mV = self.score(hidden_mH)
        likely_mk = self._table.likely(base_mV)
        return torch.tensor(
            self._walk(anchor, hidden_mH, lambda i, code_r: self._table.best(base_mV[i], likely_mk[i], code_r))
        )

    @torch.no_grad()
    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """As ``propose``, every token drawn from its corrected row."""
        hidden_mH = self.hidden(anchor)
        base_mV, q_mV = self.score(hidden_mH), []

        def drawn(i: int, code_r: Tensor) -> int:
            token, q_V = draw(base_mV[i] + self._table.bias(code_r))
            q_mV.append(q_V)
            return token

        tokens = self._walk(anchor, hidden_mH, drawn)
        return Proposal(tokens_m=torch.tensor(tokens), q_mV=torch.stack(q_mV))

    @torch.no_grad()
    def corrected(self, anchor: int, text_m: Tensor) -> Tensor:
        """``[m, V]`` logits of the rows, if the tokens ``text_m`` are chosen along the block."""
        hidden_mH = self.hidden(anchor)
        base_mV, rows = self.score(hidden_mH), []

        def told(i: int, code_r: Tensor) -> int:
            rows.append(base_mV[i] + self._table.bias(code_r))
            return int(text_m[i])

        self._walk(anchor, hidden_mH, told)
        return torch.stack(rows)

    def _walk(self, anchor: int, hidden_mH: Tensor, choose: Callable[[int, Tensor], int]) -> list[int]:
        """The tokens that ``choose`` gives for rows 0, 1, .. and their codes ``[r]``; notes the confidence."""
        state = self._step.initial_state(hidden_mH[:1])
        before, tokens, embedded = anchor, [], []
        for i in range(hidden_mH.shape[0]):
            embedded_1r = self._before_Vr[before : before + 1].float()
            code_1r, state = self._step.step(hidden_mH[i : i + 1], embedded_1r, state)
            before = choose(i, code_1r[0])
            tokens.append(before)
            embedded.append(embedded_1r)
        if self._confidence is not None:
            self.confidence_m = self._confidence(hidden_mH, torch.cat(embedded))
        return tokens
