"""Records as JSON lines, one round a line: ``request``, ``logits``, ``accepted``, ``proposed``, ``verify_len``,
``cap_trim``.

``verify_len`` are the rows verified, the anchor's included; ``cap_trim`` what a scheduler took off ``accepted``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specflow.calibration.records import ConfidenceRecords, RecordsError, numbered, value_problems

FIELDS = {"request", "logits", "accepted", "proposed", "verify_len", "cap_trim"}


def write_rounds(path: Path, records: ConfidenceRecords, requests: Sequence[str]) -> None:
    """``requests``: names by number. fp32 logits are written so that they read back bit for bit."""
    m = records.num_proposals
    with path.open("w", encoding="utf-8") as file:
        for row in range(records.rounds):
            line = {
                "request": requests[int(records.request_N[row])],
                "logits": [float(z) for z in records.logits_NM[row]],
                "accepted": int(records.accepted_N[row]),
                "proposed": m,
                "verify_len": m + 1,
                "cap_trim": 0,
            }
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_rounds(path: Path) -> ConfidenceRecords:
    """Raises ``RecordsError`` with every reason why the file must not be calibrated on."""
    rows, problems = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, Mapping) or not row.keys() >= FIELDS or not isinstance(row["logits"], list):
                raise ValueError(f"expected the fields {', '.join(sorted(FIELDS))}")
            rows.append((number, row))
        except ValueError as error:
            problems.append(f"{path.name}:{number}: not a round: {error}")
    return records_of(rows, where=path.name, problems=problems)


def records_of(
    rows: Iterable[tuple[int, Mapping[str, Any]]], *, where: str, foreign: bool = True, problems: Sequence[str] = ()
) -> ConfidenceRecords:
    """Rounds by line; raises ``RecordsError`` with ``problems`` and every other one."""
    rows = list(rows)
    found = list(problems)
    if not rows and not found:
        found.append(f"{where}: no rounds; expected at least one")
    size = int(rows[0][1]["proposed"]) if rows else 0
    bad: dict[str, list[int]] = defaultdict(list)
    for number, row in rows:
        for reason in _reasons(row, size):
            bad[reason].append(number)
    for reason, lines in bad.items():
        found.append(f"{where}: {len(lines)} of {len(rows)} rounds {reason} (first: line {lines[0]})")
    well_formed = [row for _, row in rows if len(row["logits"]) == size]
    logits_NM = np.array([row["logits"] for row in well_formed], dtype=np.float32).reshape(len(well_formed), size)
    found += value_problems(logits_NM, where=where, foreign=foreign)
    if found:
        raise RecordsError(found)
    return ConfidenceRecords(
        logits_NM=logits_NM,
        accepted_N=np.array([row["accepted"] for row in well_formed], dtype=np.int64),
        request_N=numbered(row["request"] for row in well_formed),
    )


def _reasons(row: Mapping[str, Any], size: int) -> Iterator[str]:
    proposed, accepted = int(row["proposed"]), int(row["accepted"])
    if proposed != size:
        yield f"have another number of proposals than the first ({size}): calibrate each drafter alone"
    if len(row["logits"]) != proposed:
        yield "have not one logit per proposal: truncated records"
    if int(row["verify_len"]) != proposed + 1:
        yield "were not verified in full (verify_len is not proposed + 1): collect with the scheduler off"
    if int(row["cap_trim"]) != 0:
        yield "were cut by a scheduler (cap_trim above 0): collect with the scheduler off"
    if not 0 <= accepted <= proposed:
        yield "accepted fewer than 0 or more than were proposed"
