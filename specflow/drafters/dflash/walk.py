"""Rounds of many texts side by side, as decoding would make them one after the other.

The context of every text is projected once; a round is one forward pass with one block per text.

Legend: N blocks, B rows of a block, M = B - 1 of them with a proposal, R of all these that a text has a token for,
S context rows of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.drafters.dflash.attention import Span
from specflow.drafters.dflash.blocks import labels_and_validity
from specflow.drafters.dflash.forward import embedded
from specflow.drafters.dflash.network import Context, DFlashNetwork
from specflow.drafters.training import Ends, Text


class DFlashWalk:
    """See ``specflow.drafters.training.Walk``."""

    @torch.no_grad()
    def __init__(self, network: DFlashNetwork, ends: Ends, texts: Sequence[Text]) -> None:
        self._network, self._ends, self._texts = network, ends, texts
        lengths = [text.features_TKH.shape[0] for text in texts]
        self._first_row: list[int] = torch.tensor([0, *lengths]).cumsum(0).tolist()
        device = network.fc.weight.device
        features_SKH = torch.cat([text.features_TKH.to(device).float() for text in texts])
        positions_S = torch.cat([torch.arange(n, device=device) for n in lengths])
        self._keys, self._values = network.project_context(features_SKH, positions_S)
        self._device = device

    @torch.no_grad()
    def accepted(self, places: Sequence[tuple[int, int]]) -> list[int]:
        return leading(self._agree(self.rows(places)))

    def _agree(self, rows: JudgedRows) -> Tensor:
        """``[N, M]``: for every valid label, whether it is what is proposed after the text before it."""
        return rows.spread(self._ends.agrees(rows.hidden_RH, rows.labels_R))

    @torch.no_grad()
    def rows(self, places: Sequence[tuple[int, int]]) -> JudgedRows:
        """The rows of every place's block that a text has a token for."""
        g = self._network.geometry
        anchors_N = torch.tensor([anchor for _, anchor in places])
        spans = tuple(
            Span(context=(self._first_row[t], self._first_row[t] + a), blocks=(n, n + 1))
            for n, (t, a) in enumerate(places)
        )
        visible_N = anchors_N.to(self._device)
        context = Context(keys=self._keys, values=self._values, spans=spans, visible_N=visible_N)
        ids_N = torch.stack([self._texts[t].token_ids_T[a] for t, a in places]).to(self._device)
        positions_NB = visible_N.unsqueeze(1) + torch.arange(g.block_size, device=self._device)
        embeds_NBH = embedded(self._network, ids_N, self._ends.embed)
        hidden_NMH = self._network(embeds_NBH, positions_NB, context, first_row=g.first_row)
        pairs = [
            labels_and_validity(
                text.token_ids_T, text.supervised_T, torch.tensor([anchor]), block_size=g.num_proposals + 1
            )
            for t, anchor in places
            for text in (self._texts[t],)
        ]
        labels, valid = (torch.cat(parts).to(self._device) for parts in zip(*pairs, strict=True))
        return JudgedRows(hidden_NMH=hidden_NMH, anchor_ids_N=ids_N, labels_NM=labels, valid_NM=valid)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """R: the valid rows, block by block."""

    hidden_NMH: Tensor
    anchor_ids_N: Tensor
    labels_NM: Tensor
    valid_NM: Tensor

    @property
    def hidden_RH(self) -> Tensor:
        return self.hidden_NMH[self.valid_NM]

    @property
    def labels_R(self) -> Tensor:
        return self.labels_NM[self.valid_NM]

    @property
    def previous_R(self) -> Tensor:
        """The text's token before each label."""
        return previous_tokens(self.anchor_ids_N, self.labels_NM)[self.valid_NM]

    def spread(self, values_R: Tensor) -> Tensor:
        """``[N, M]``, false where there is no row."""
        return torch.zeros_like(self.valid_NM).masked_scatter(self.valid_NM, values_R)


def leading(right_NM: Tensor) -> list[int]:
    """Of each block, its right proposals before the first other one."""
    counts: list[int] = right_NM.long().cumprod(dim=1).sum(dim=1).tolist()
    return counts


def previous_tokens(anchor_ids_N: Tensor, labels_NM: Tensor) -> Tensor:
    """``[N, M]``: the token before each label."""
    return torch.cat((anchor_ids_N.unsqueeze(1), labels_NM[:, :-1]), dim=1)
