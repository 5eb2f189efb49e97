"""Rows for a drafter that need not draft in every round: kept until it does, then fed at once."""

from __future__ import annotations

import torch

from specflow.drafters.base import Committed, Proposer
from specflow.targets.base import TargetOutput

MOST_SHARED = 32
"""Single rows that may wait as parts of whole passes; more are copied out together, so that the passes can go."""


class Fed:
    """The committed rows that ``proposer`` has not read yet."""

    def __init__(self, proposer: Proposer, *, at_once: bool) -> None:
        self._proposer, self._at_once = proposer, at_once
        self._waiting: list[Committed] = []
        self._single: list[tuple[TargetOutput, int, int]] = []
        """Behind those: the pass, the request's place in it, and the token after."""

    def add(self, rows: Committed) -> None:
        if self._at_once:
            self._proposer.extend(rows)
        else:
            self._copy_out()
            self._waiting.append(_copied(rows))

    def add_single(self, output: TargetOutput, request: int, next_id: int) -> None:
        """The only row of ``request`` in a pass in which nobody drafted; for rows that are not fed at once.

        Nothing is computed: most requests end before they draft again.
        """
        self._single.append((output, request, next_id))
        if len(self._single) >= MOST_SHARED:
            self._copy_out()

    def _copy_out(self) -> None:
        if self._single:
            self._waiting.append(_rows_of(self._single))
            self._single = []

    def catch_up(self) -> None:
        """Before the proposer drafts."""
        self._copy_out()
        if self._waiting:
            self._proposer.extend(_joined(self._waiting))
            self._waiting = []


def _rows_of(singles: list[tuple[TargetOutput, int, int]]) -> Committed:
    features = [output.features_BTKH[b, 0] for output, b, _ in singles if output.features_BTKH is not None]
    last_TH = torch.stack([output.last_hidden_BTH[b, 0] for output, b, _ in singles])
    return Committed(
        features_TKH=torch.stack(features) if features else last_TH.unsqueeze(1)[:, :0],
        next_ids_T=torch.tensor([next_id for _, _, next_id in singles]),
        last_hidden_TH=last_TH,
    )


def _copied(rows: Committed) -> Committed:
    """Of its own: rows are views, which would keep the whole pass of all requests."""
    last_TH = rows.last_hidden_TH
    return Committed(
        features_TKH=rows.features_TKH.clone(),
        next_ids_T=rows.next_ids_T,
        last_hidden_TH=None if last_TH is None else last_TH.clone(),
    )


def _joined(parts: list[Committed]) -> Committed:
    if len(parts) == 1:
        return parts[0]
    last = [part.last_hidden_TH for part in parts if part.last_hidden_TH is not None]
    return Committed(
        features_TKH=torch.cat([part.features_TKH for part in parts]),
        next_ids_T=torch.cat([part.next_ids_T for part in parts]),
        last_hidden_TH=torch.cat(last) if last else None,
    )
