"""Rounds of many texts side by side, and what the selector is worth in them (METHODS 7).

On a given text a proposal counts only while all before it are right, so the selector's predecessor is the text's own
token: every row can be judged by itself. Three rules of choosing are compared: the selector's, the backbone's own
first candidate, and the right token wherever it is a candidate (the best path within the lattice).

Legend: N blocks, M proposals of a block, R rows that a text has a token for, K candidates of a row, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from specflow.drafters import row_losses
from specflow.drafters.candidates import largest
from specflow.drafters.dflash.walk import DFlashWalk, leading
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.training import Ends, Text

Rule = Literal["selector", "backbone", "oracle"]


class Judged(NamedTuple):
    """``[R]`` bool each."""

    selector_R: Tensor
    """The selector's choice is the label."""
    backbone_R: Tensor
    """The most likely token is."""
    oracle_R: Tensor
    """Any candidate is."""


@torch.no_grad()
def judge(network: DFlash2Network, ends: Ends, hidden_RH: Tensor, labels_R: Tensor, previous_R: Tensor) -> Judged:
    """Every row after the text's own token; over the whole vocabulary, some rows at a time."""
    selector, g = network.selector, network.geometry
    if selector is None:
        right_R = ends.agrees(hidden_RH, labels_R)
        return Judged(right_R, right_R, right_R)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    count = max(1, row_losses.CHUNK_LOGITS // g.vocab_size)
    for start in range(0, len(labels_R), count):
        rows = slice(start, start + count)
        logits_RV, label_R1 = ends.head(hidden_RH[rows]), labels_R[rows].unsqueeze(1)
        candidates_RK = largest(logits_RV, g.selector_top_k)
        own_RK = g.shape.of(logits_RV.gather(1, candidates_RK))
        pairs_RK = selector.pairs(hidden_RH[rows], previous_R[rows].unsqueeze(1), candidates_RK).squeeze(1)
        is_label_RK = candidates_RK == label_R1
        found.append(
            (
                is_label_RK.gather(1, (own_RK + pairs_RK).argmax(dim=1, keepdim=True)).squeeze(1),
                is_label_RK.gather(1, own_RK.argmax(dim=1, keepdim=True)).squeeze(1),
                is_label_RK.any(dim=1),
            )
        )
    empty = torch.zeros(0, dtype=torch.bool, device=labels_R.device)
    return Judged(*(torch.cat(parts) for parts in zip(*found, strict=True))) if found else Judged(empty, empty, empty)


class DFlash2Walk(DFlashWalk):
    """See ``specflow.drafters.training.ComparedWalk``; with a selector it counts where rounds end, and why."""

    _network: DFlash2Network

    def __init__(self, network: DFlash2Network, ends: Ends, texts: Sequence[Text]) -> None:
        super().__init__(network, ends, texts)
        self._rule: Rule = "selector"
        self._reached, self._inside, self._right = (self._zeros() for _ in range(3))

    def _zeros(self) -> Tensor:
        return torch.zeros(self._network.geometry.block_size - 1, dtype=torch.int64)

    @torch.no_grad()
    def accepted(self, places: Sequence[tuple[int, int]]) -> list[int]:
        rows = self.rows(places)
        judged = judge(self._network, self._ends, rows.hidden_RH, rows.labels_R, rows.previous_R)
        selector_NM, inside_NM = rows.spread(judged.selector_R), rows.spread(judged.oracle_R)
        if self._rule != "selector":
            return leading(inside_NM if self._rule == "oracle" else rows.spread(judged.backbone_R))
        before_NM = torch.nn.functional.pad(selector_NM[:, :-1].long().cumprod(dim=1), (1, 0), value=1).bool()
        reached_NM = before_NM & rows.valid_NM
        self._reached += reached_NM.sum(dim=0).cpu()
        self._inside += (reached_NM & inside_NM).sum(dim=0).cpu()
        self._right += (reached_NM & selector_NM).sum(dim=0).cpu()
        return leading(selector_NM)

    def alternatives(self) -> Mapping[str, DFlash2Walk]:
        if self._network.selector is None:
            return {}
        return {"oracle": self._under("oracle"), "backbone": self._under("backbone")}

    def figures(self) -> Mapping[str, Any]:
        """Per position, of rounds whose earlier proposals are all right: whether the token is a candidate (recall), and
        whether it is then chosen (accuracy); and the rounds that end because it is not the one or not the other."""
        if self._network.selector is None:
            return {}
        reached, inside, right = self._reached.tolist(), self._inside.tolist(), self._right.tolist()
        return {
            "selector": {
                "candidates": self._network.geometry.selector_top_k,
                "recall_per_position": [n / d if d else None for n, d in zip(inside, reached, strict=True)],
                "accuracy_per_position": [n / d if d else None for n, d in zip(right, inside, strict=True)],
                "ended_by_backbone": sum(reached) - sum(inside),
                "ended_by_selector": sum(inside) - sum(right),
            }
        }

    def _under(self, rule: Rule) -> DFlash2Walk:
        other = copy.copy(self)  # the projected context is shared
        other._rule = rule
        return other
