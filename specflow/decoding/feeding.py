"""Rows for a drafter that need not draft in every round: kept until it does, then fed at once."""

from __future__ import annotations

import torch

from specflow.drafters.base import Committed, Proposer


class Fed:
    """The committed rows that ``proposer`` has not read yet."""

    def __init__(self, proposer: Proposer, *, at_once: bool) -> None:
        self._proposer, self._at_once = proposer, at_once
        self._waiting: list[Committed] = []

    def add(self, rows: Committed) -> None:
        if self._at_once:
            self._proposer.extend(rows)
        else:
            self._waiting.append(_copied(rows))

    def catch_up(self) -> None:
        """Before the proposer drafts."""
        if self._waiting:
            self._proposer.extend(_joined(self._waiting))
            self._waiting = []


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
