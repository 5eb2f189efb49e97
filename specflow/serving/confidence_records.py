"""Held-out rounds with the drafter's confidence, verified in full, kept prompt by prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specflow.calibration.records import ConfidenceRecords
from specflow.calibration.round_lines import records_of
from specflow.decoding.records import Generation
from specflow.serving.lines import read_whole_lines
from specflow.serving.requests import Request


class NoConfidence(Exception):
    """The drafter says nothing of how sure it is."""


def collect_rounds(
    requests: Sequence[Request],
    decode: Callable[[Sequence[int]], Generation],
    *,
    kept: Path,
    on_request: Callable[[], None] = lambda: None,
) -> tuple[ConfidenceRecords, list[str]]:
    """The rounds of every request, and the requests' ids by number; requests without a round are left out.

    Finished requests are in ``kept``, so that a killed run continues. Raises ``NoConfidence`` at the first round
    without logits, ``RecordsError`` if the rounds are unfit.
    """
    done: dict[int, list[dict[str, Any]]] = dict(read_whole_lines(kept, _finished))
    for number, request in enumerate(requests):
        if number not in done:
            done[number] = [_row(request.id, r) for r in decode(request.prompt).rounds]
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"number": number, "rounds": done[number]}, separators=(",", ":")) + "\n")
        on_request()
    rows = [row for number in range(len(requests)) for row in done[number]]
    records = records_of(enumerate(rows, 1), where="held-out rounds", foreign=False)
    return records, list(dict.fromkeys(row["request"] for row in rows))


def _row(request: str, found: Any) -> dict[str, Any]:
    if found.confidence is None:
        raise NoConfidence
    return {
        "request": request,
        "logits": list(found.confidence),
        "accepted": found.accepted,
        "proposed": found.proposed,
        "verify_len": found.judged + 1,
        "cap_trim": 0,
    }


def _finished(line: Any) -> tuple[int, list[dict[str, Any]]]:
    return int(line["number"]), list(line["rounds"])
