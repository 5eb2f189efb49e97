"""Temperatures and cost table beside an export's weights: what a scheduler of verification reads (contract E).

A file that does not fit is worse than none: temperatures of another number of proposals end the server's start, and a
flat cost table makes it verify everything. Both travel with the conditions that they hold for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specflow.calibration.sglang_sts import read_sts
from specflow.costs.checks import FLAT, table_spread
from specflow.costs.sglang_tables import read_table
from specflow.serving.draft import Draft, Finding, NotKnown

TEMPERATURES, COSTS = "sts.json", "sps.json"
SECTION = "schedule"
"""Of an export's manifest: what the files hold for."""


def copy_schedule(
    draft: Path, *, num_proposals: int, temperatures: Path | None, costs: Path | None, conditions: Mapping[str, Any]
) -> dict[str, Any]:
    """Copy what there is into ``draft``; the manifest's section. Raises ``ValueError`` on a file that does not fit.

    ``conditions``: of the costs, as they were measured.
    """
    found: dict[str, Any] = {}
    if temperatures is not None:
        sts = read_sts(temperatures, num_proposals=num_proposals)
        shutil.copyfile(temperatures, draft / TEMPERATURES)
        found["temperatures"] = {"file": TEMPERATURES, "rounds": sts.num_samples, "dataset": sts.dataset}
    if costs is not None:
        if problem := _flat(costs):
            raise ValueError(problem)
        shutil.copyfile(costs, draft / COSTS)
        found["costs"] = {"file": COSTS, "conditions": dict(conditions)}
    return found


def _flat(path: Path) -> str | None:
    spread = table_spread(read_table(path))
    if spread >= FLAT:
        return None
    return f"{path.name}: most rows cost {spread:.1%} more than fewest, expected at least {FLAT:.0%}: a flat table"


def _directory(draft: Draft) -> Path:
    if draft.directory is None:
        raise NotKnown("the directory")
    return draft.directory


def temperatures(draft: Draft) -> Iterator[Finding]:
    """One positive temperature per proposal."""
    path = _directory(draft) / TEMPERATURES
    if not path.exists():
        return
    try:
        read_sts(path, num_proposals=int(draft.manifest["num_proposals"]) if draft.ours else None)
    except (ValueError, OSError) as error:
        expected = "a positive temperature for every proposal"
        yield Finding(check="temperatures", where=TEMPERATURES, found=str(error), expected=expected)


def costs(draft: Draft) -> Iterator[Finding]:
    """A cost table that a scheduler can act on."""
    path = _directory(draft) / COSTS
    if not path.exists():
        return
    try:
        problem = _flat(path)
    except (ValueError, OSError) as error:
        problem = str(error)
    if problem:
        expected = "costs that grow with rows; specflow profile measures them"
        yield Finding(check="costs", where=COSTS, found=problem, expected=expected)


def conditions_of(costs_record: Path) -> dict[str, Any]:
    """Of the record beside a cost table; empty where it says none."""
    found: dict[str, Any] = json.loads(costs_record.read_text(encoding="utf-8")).get("conditions") or {}
    return found
