"""What a scheduler did: rows granted and saved, and for every position how often it was judged, rejected, or cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specflow.decoding.records import Generation
from specflow.scheduling.cut import accept_under_cut


def granted(generations: Iterable[Generation], num_proposals: int) -> dict[str, Any]:
    """Sums over rounds, the anchor's row included in rows.

    By position: ``judged`` rounds verified it; in ``rejected`` ones everything before it was accepted and it was not;
    in ``cut`` ones everything before it was accepted and it was not verified. Of a cut proposal nobody knows whether it
    would have been accepted, so it counts neither way.
    """
    rounds = [r for generation in generations for r in generation.rounds]
    cuts = [accept_under_cut(r.accepted, r.judged + 1) for r in rounds]
    rows = sum(r.judged + 1 for r in rounds)
    return {
        "rounds": len(rounds),
        "rounds_without_drafting": sum(r.proposed == 0 for r in rounds),
        "rows": rows,
        "rows_saved": len(rounds) * (num_proposals + 1) - rows,
        "committed_rows": sum(cut.committed for cut in cuts),
        "seconds": sum(r.schedule_seconds for r in rounds),
        "positions": [
            {
                "position": j,
                "judged": sum(r.judged >= j for r in rounds),
                "accepted": sum(r.accepted >= j for r in rounds),
                "rejected": sum(r.judged >= j and r.accepted == j - 1 for r in rounds),
                "cut": sum(r.judged == r.accepted == j - 1 for r in rounds if r.proposed),
            }
            for j in range(1, num_proposals + 1)
        ],
    }
