"""The attention of a pass whose rows are a tree: a row sees the committed prefix, its ancestors and itself.

Legend: B requests, T rows of the pass, S cached places. Rows lie in the cache in their order, but their positions are
those of the text that they continue: siblings have the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.targets.attention import AttentionPass


class TreePass(AttentionPass):
    """``parents_BT`` int64: the row that each row follows, -1 where that is the committed prefix.

    Raises ``ValueError`` unless every parent comes before its row.
    """

    __slots__ = ("_related_BTT", "parents_BT")

    def __init__(self, committed: list[int], parents_BT: Tensor, device: torch.device) -> None:
        batch, rows = parents_BT.shape
        super().__init__(committed, rows, device)
        wrong_BT = (parents_BT >= torch.arange(rows)) | (parents_BT < -1)
        if len(committed) != batch or bool(wrong_BT.any()):
            raise ValueError(
                f"parents of {batch} requests for {len(committed)}, rows whose parent is not before them: "
                f"{wrong_BT.nonzero().tolist()[:3]}; expected -1 or an earlier row"
            )
        self.parents_BT = parents_BT
        self._related_BTT = related(parents_BT).to(device)
        self.positions_BT = self.slots_BT[:, :1] + self._related_BTT.sum(dim=2) - 1
        self.position_ids = self.positions_BT

    def is_causal(self, window: int | None) -> bool:
        return False

    def hidden(self, low: int, window: int | None) -> Tensor:
        first_B11 = self.slots_BT[:, :1].unsqueeze(2)
        slots_S = torch.arange(low, self.length, device=self.slots_BT.device)
        row_B1S = slots_S - first_B11
        inside_BTS = ((row_B1S >= 0) & (row_B1S < self.rows)).expand(-1, self.rows, -1)
        row_BTS = row_B1S.clamp(0, self.rows - 1).expand(-1, self.rows, -1)
        hidden_BTS = (row_B1S >= 0) & ~(inside_BTS & self._related_BTT.gather(2, row_BTS))
        if window is not None:
            position_B1S = torch.where(
                inside_BTS[:, :1], self.positions_BT.unsqueeze(1).gather(2, row_BTS[:, :1]), slots_S
            )
            hidden_BTS = hidden_BTS | (position_B1S <= (self.positions_BT - window).unsqueeze(2))
        return hidden_BTS


def related(parents_BT: Tensor) -> Tensor:
    """``[B, T, T]`` bool: whether the second row is the first one or an ancestor of it."""
    batch, rows = parents_BT.shape
    reached_BTT = torch.eye(rows).repeat(batch, 1, 1)
    b, t = (parents_BT >= 0).nonzero(as_tuple=True)
    reached_BTT[b, t, parents_BT[b, t]] = 1.0
    steps = 1
    while steps < rows:  # each product doubles how far up a row reaches
        further_BTT = (reached_BTT @ reached_BTT).clamp_(max=1.0)
        if torch.equal(further_BTT, reached_BTT):
            break
        reached_BTT, steps = further_BTT, 2 * steps
    return reached_BTT > 0
