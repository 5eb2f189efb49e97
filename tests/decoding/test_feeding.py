"""What a drafter that was silent reads when it drafts again: every row once, in order, whichever way it came."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specflow.decoding.feeding import MOST_SHARED, Fed
from specflow.drafters.base import Committed
from specflow.targets.base import TargetOutput

LAYERS, WIDTH, REQUESTS, OWN = 2, 3, 4, 2


class Reading:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.read: list[Committed] = []

    def extend(self, rows: Committed) -> None:
        self.read.append(rows)


def output(first: int, rows: int, *, features: bool = True) -> TargetOutput:
    """Row i of request b has the values ``first + i + b / 10``."""
    at_BT = first + torch.arange(rows).float() + torch.arange(REQUESTS).unsqueeze(1) / 10
    return TargetOutput(
        last_hidden_BTH=at_BT[:, :, None].expand(-1, -1, WIDTH).clone(),
        features_BTKH=at_BT[:, :, None, None].expand(-1, -1, LAYERS, WIDTH).clone() if features else None,
    )


@pytest.mark.parametrize("features", [True, False])
def test_rows_come_in_order(features: bool) -> None:
    proposer: Any = Reading()
    fed, next_row = Fed(proposer, at_once=False), 0
    for singles, together in ((3, 5), (MOST_SHARED + 2, 1), (1, 0)):
        for _ in range(singles):
            fed.add_single(output(next_row, 1, features=features), OWN, next_row + 1)
            next_row += 1
        if together:
            part = output(next_row, together, features=features)
            features_TKH = part.last_hidden_BTH[OWN].unsqueeze(1)[:, :0]
            fed.add(
                Committed(
                    features_TKH=features_TKH if part.features_BTKH is None else part.features_BTKH[OWN],
                    next_ids_T=torch.arange(next_row + 1, next_row + together + 1),
                    last_hidden_TH=part.last_hidden_BTH[OWN],
                )
            )
            next_row += together
    assert proposer.read == []
    fed.catch_up()
    (rows,) = proposer.read
    expected_T = torch.arange(next_row) + OWN / 10
    assert rows.last_hidden_TH is not None
    assert torch.allclose(rows.last_hidden_TH, expected_T[:, None].expand(-1, WIDTH))
    assert rows.features_TKH.shape == (next_row, LAYERS if features else 0, WIDTH)
    if features:
        assert torch.allclose(rows.features_TKH, expected_T[:, None, None].expand(-1, LAYERS, WIDTH))
    assert rows.next_ids_T.tolist() == list(range(1, next_row + 1))
    fed.catch_up()
    assert len(proposer.read) == 1
