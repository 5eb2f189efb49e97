"""Drafters that feed themselves over a target whose features are its tokens: what they propose can be enumerated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.state_proposer import StateProposer


class TextFed(StateProposer):
    """The target's features are its tokens; rows are computed once, as thousands of paths ask for them."""

    def begin(self, embedding_VH: Tensor, captured: int) -> None:
        """``captured``: layers that the drafter reads beside the last hidden state, all with the same values."""
        self._table, self._captured = embedding_VH, captured
        self._text, self._known = list[int](), dict[tuple[int, ...], Tensor]()

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self._text = []

    def extend(self, rows: Committed) -> None:
        self._text += rows.features_TKH.flatten().long().tolist()
        self._next = int(rows.next_ids_T[-1])

    def _chain(self, anchor: int, choose: Callable[[Tensor, int], int]) -> tuple[Tensor, Tensor]:
        assert anchor == self._next
        tokens: list[int] = []
        for index in range(self.num_proposals):
            tokens.append(choose(self._row((*self._text, anchor), tokens), index))
        return torch.tensor(tokens), torch.zeros(0)

    def _row(self, text: tuple[int, ...], tokens: list[int]) -> Tensor:
        key = (*text, -1, *tokens)
        if key not in self._known:
            ids = torch.tensor(text)
            super().reset(len(ids))
            states_TH = self._table[ids[:-1]]
            features = states_TH.unsqueeze(1).expand(-1, self._captured, -1)
            super().extend(Committed(features_TKH=features, next_ids_T=ids[1:], last_hidden_TH=states_TH))
            given = iter([*tokens, *[0] * self.num_proposals])
            hidden = super()._chain(text[-1], lambda hidden_H, index: next(given))[1]
            self._known[key] = hidden[len(tokens)]
            self._text = list(text[:-1])
        return self._known[key]


def text_fed(kind: Any, network: Any, embedding_VH: Tensor, *, captured: int, head: Any) -> Any:
    """A proposer of ``kind`` (its class mixed with ``TextFed``) with these weights."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter))
    made = kind.__new__(kind)
    made.begin(embedding_VH, captured)
    made.__init__(network, embed=lambda ids: embedding_VH[ids], head=head)
    made.begin(embedding_VH, captured)
    return made
