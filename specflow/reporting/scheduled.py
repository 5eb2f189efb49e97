"""What a scheduler of verification did, as a table: by position how often it was judged, rejected, or cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.reporting import text


def scheduled_panel(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of ``result.json``; none where everything was verified."""
    scheduler = result.get("scheduler")
    if not scheduler:
        return None
    found = scheduler["granted"]
    rounds = max(found["rounds"], 1)
    return {
        "note": _note(scheduler, found),
        "head": ["position", "judged", "share of rounds", "accepted", "rejected", "cut", "accepted of judged"],
        "rows": [
            [
                str(row["position"]),
                text.count(row["judged"]),
                text.percent(row["judged"] / rounds),
                text.count(row["accepted"]),
                text.count(row["rejected"]),
                text.count(row["cut"]),
                text.percent(row["accepted"] / row["judged"]) if row["judged"] else text.NONE,
            ]
            for row in found["positions"]
        ],
    }


def _note(scheduler: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    rounds, whole = max(found["rounds"], 1), found["rows"] + found["rows_saved"]
    calibrated = "" if scheduler["temperatures"] else " Its confidence is not calibrated."
    return (
        f"Mode {scheduler['mode']}. {text.count(found['rows'])} rows verified, {text.number(found['rows'] / rounds)} a "
        f"round; {text.count(found['rows_saved'])} saved, {text.percent(found['rows_saved'] / max(whole, 1))} of full "
        f"verification. {text.percent(found['rounds_without_drafting'] / rounds)} of the rounds drafted nothing. The "
        f"scheduler took {text.number(1e6 * found['seconds'] / rounds, 0)} µs a round. Cut: everything before was "
        f"accepted, and the position was not verified; nobody knows whether it would have been accepted.{calibrated}"
    )
