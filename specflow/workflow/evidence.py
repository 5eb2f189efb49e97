"""Artifacts of a store that a prediction needs: the newest cost table, and the newest measurements of each drafter."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specflow.workflow.record import ArtifactRecord
from specflow.workflow.store import ArtifactStore

COSTS, BENCHMARK, CALIBRATION = "costs", "benchmark", "calibration"


class NoEvidence(LookupError):
    """What is missing for a prediction; ``missing`` says everything, each with what makes it."""

    def __init__(self, missing: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{what}: {how}" for what, how in missing))
        self.missing = missing


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterArtifacts:
    name: str
    benchmark: ArtifactRecord | None
    calibration: ArtifactRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvidence:
    """All of one target."""

    costs: ArtifactRecord
    drafters: tuple[DrafterArtifacts, ...]


def stored_evidence(store: ArtifactStore, *, drafter: str | None = None) -> StoredEvidence:
    """Of the target whose costs were measured last; ``drafter``: only the one of this name.

    Raises ``NoEvidence``.
    """
    records = sorted(store.records(), key=lambda record: record.ended)
    # Those of a server are whole rounds, drafting included: nothing that a benchmark of this engine could be added to.
    costs = [record for record in records if record.kind == COSTS and not record.parameters.get("sglang")]
    target = _target(costs[-1]) if costs else None
    measured = [
        record
        for record in records
        if record.kind in (BENCHMARK, CALIBRATION) and (target is None or _target(record) == target)
        # Rounds that a scheduler cut say nothing of what another one would do.
        if not (record.kind == BENCHMARK and record.parameters.get("scheduler"))
    ]
    drafters = _by_drafter(measured)
    if drafter is not None:
        drafters = [found for found in drafters if found.name == drafter]
    missing = []
    if not costs:
        missing.append(("no cost table in the store", "run `specflow profile`"))
    if not drafters:
        what = "no drafter" if drafter is None else f"no drafter {drafter!r}"
        missing.append((f"{what} with a benchmark or a calibration in the store", "run `specflow run calibration`"))
    if missing:
        raise NoEvidence(missing)
    return StoredEvidence(costs=costs[-1], drafters=tuple(drafters))


def costs_record(store: ArtifactStore, costs: ArtifactRecord) -> dict[str, Any]:
    """``costs.json`` of the artifact."""
    data: dict[str, Any] = json.loads((store.path(COSTS, costs.key) / "costs.json").read_text(encoding="utf-8"))
    return data


def _by_drafter(records: Iterable[ArtifactRecord]) -> list[DrafterArtifacts]:
    """The newest drafter of each name, with the newest of each kind; by name."""
    newest: dict[str, str] = {}
    found: dict[tuple[str, str], ArtifactRecord] = {}
    for record in records:  # the oldest first
        key = ",".join(record.inputs.get("drafter", []))
        newest[record.item or key[:12]] = key
        found[key, record.kind] = record
    return [
        DrafterArtifacts(name=name, benchmark=found.get((key, BENCHMARK)), calibration=found.get((key, CALIBRATION)))
        for name, key in sorted(newest.items())
    ]


def _target(record: ArtifactRecord) -> str:
    return ",".join(record.inputs.get("target", []))
