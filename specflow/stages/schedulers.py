"""The scheduler that a stage decodes with, from its configuration, a cost table and the drafter's calibration."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specflow.config.scheduler import SchedulerParams
from specflow.stages.contract import Artifact, Context, Problem, StageError

FLOW = "scheduler"
"""A flow with everything that a scheduler reads."""


def missing_stages(section: str, params: SchedulerParams | None, sections: Mapping[str, Any]) -> Iterator[Problem]:
    """Stages that a scheduler needs and the flow does not have."""
    absent = [stage for stage in ("calibrate", "profile") if stage not in sections]
    if params is not None and params.mode != "off" and absent:
        yield Problem(
            where=f"{section}.scheduler",
            found=f"{params.mode}, in a flow without {' and '.join(absent)} before {section}",
            expected="a flow with both: a scheduler goes by calibrated confidence and measured costs",
            hint=f"use the flow `{FLOW}`, or leave `{section}.scheduler` out",
        )


def asked_scheduler(
    params: SchedulerParams | None,
    drafters: Collection[str] | None,
    *,
    target: Any,
    proposer: Any,
    prompt: Sequence[int],
    calibration: Artifact | None,
    costs: Artifact | None,
    context: Context,
) -> Any:
    """A ``Scheduler``; none: everything is verified. ``prompt``: drafting is timed on its answer, once.

    ``drafters``: names of those that are scheduled, none: all. Raises ``StageError`` with everything that is missing.
    """
    if params is None or params.mode == "off" or (drafters is not None and context.item not in drafters):
        return None
    name = context.item or "drafter"
    return scheduler_of(
        params, name, target=target, proposer=proposer, prompt=prompt, calibration=calibration, costs=costs,
        context=context,
    )  # fmt: skip


def scheduler_of(
    params: SchedulerParams,
    name: str,
    *,
    target: Any,
    proposer: Any,
    prompt: Sequence[int],
    calibration: Artifact | None,
    costs: Artifact | None,
    context: Context,
) -> Any:
    """The ``Scheduler`` of drafter ``name``."""
    from dataclasses import asdict

    from specflow.costs.drafting import DraftCost
    from specflow.costs.sglang_tables import table_from_json
    from specflow.decoding.draft_timing import time_drafting
    from specflow.drafters.base import Confident
    from specflow.scheduling.scheduler import Scheduler
    from specflow.simulation.costs import RoundCost
    from specflow.stages.machine import remembered

    missing = []
    if not isinstance(proposer, Confident):
        missing.append(f"{type(proposer).__name__} has no confidence to go by: name other drafters, or no scheduler")
    if costs is None:
        missing.append(f"there is no cost table: use the flow `{FLOW}`, which has the stage `profile`")
    record = json.loads(costs.file("costs.json").read_text(encoding="utf-8")) if costs else {}
    if record and (engine := record["conditions"]["engine"]["name"]) != "embedded":
        missing.append(f"the costs are of a {engine} server: this engine needs its own, without profile.sglang")
    if missing:
        raise StageError(f"drafter {name} cannot be scheduled: " + "; ".join(missing))
    if unlike := _unlike(record["conditions"]["engine"], target):
        context.log(f"the cost table was measured otherwise: {unlike}; the scheduler may choose worse, not wrongly")
    temperatures, expected = _calibrated(calibration.path if calibration else None)
    if temperatures is None:
        context.log(f"drafter {name}: its confidence is not calibrated")
    timed = remembered(context.scratch, f"drafting of {name}", lambda: asdict(time_drafting(target, proposer, prompt)))
    drafting = DraftCost(**timed)
    context.log(
        f"drafter {name}: scheduler {params.mode}; drafting takes {1e3 * drafting.per_round:.2f} ms a round and "
        f"{1e3 * drafting.per_request:.2f} ms a request"
    )
    return Scheduler(
        params=params,
        num_proposals=proposer.num_proposals,
        cost=RoundCost(table=table_from_json(record["tables"]["additive"])),
        drafting=drafting,
        temperatures=temperatures,
        expected=expected,
    )


def described(scheduler: Any) -> dict[str, Any] | None:
    """For a result record."""
    if scheduler is None:
        return None
    return {
        **scheduler.params.model_dump(mode="json"),
        "temperatures": scheduler.temperatures and list(scheduler.temperatures),
        "expected_survival": scheduler.expected and list(scheduler.expected),
        "drafting_seconds": {"per_round": scheduler.drafting.per_round, "per_request": scheduler.drafting.per_request},
    }


def _unlike(engine: Mapping[str, Any], target: Any) -> str:
    """Where the table's engine is another than this one."""
    pairs = (("precision", target.precision), ("threads", getattr(target, "threads", None)))
    return ", ".join(f"{key} {engine[key]}, here {here}" for key, here in pairs if here and engine[key] != here)


def _calibrated(path: Path | None) -> tuple[Sequence[float] | None, list[float] | None]:
    """Temperatures and mean survival; nothing of an empty calibration."""
    if path is None or not (path / "sts.json").exists():
        return None, None
    from specflow.calibration.sglang_sts import read_sts
    from specflow.simulation.traces import read_record_rounds, traces_of

    known = traces_of(read_record_rounds(path / "records.jsonl"))
    return read_sts(path / "sts.json").temperatures, known.mean_survival_M().tolist()
