"""What the store and the registry of drafters tell about all runs, for the report across them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specflow.reporting.history.data import (
    GraphNode,
    HistoryData,
    Lineage,
    Measurement,
    RegisteredDrafter,
    Run,
    StageCost,
)
from specflow.stages.gate import DECISION_FILE
from specflow.stages.gate import KIND as DECISION
from specflow.workflow.promotion import DrafterRegistry, Event
from specflow.workflow.record import ArtifactRecord
from specflow.workflow.registry import STAGE_NAMES
from specflow.workflow.store import ArtifactStore

Pair = tuple[str, str]
BENCHMARK, EXPORT = "benchmark", "export"


def chronicle(store: ArtifactStore, *, title: str, service: str | None = None) -> HistoryData:
    """Everything measured, decided and made. ``service``: only its drafters and decisions."""
    records = store.records()
    by_pair = {(record.kind, record.key): record for record in records}
    registry = DrafterRegistry(store)
    events = [event for event in registry.events() if service in (None, event.service)]
    decisions = _decisions(store, records, service)
    runs = _runs(decisions, events, by_pair)
    return HistoryData(
        title=title,
        measurements=sorted([*_benchmarks(records), *_compared(runs)], key=lambda m: m.time),
        drafters=[
            RegisteredDrafter(
                service=entry.service,
                key=entry.drafter,
                name=entry.name,
                state=entry.state,
                since=entry.since,
                reason=entry.reason,
                tokens_per_second=entry.figures.get("tokens_per_second"),
                tau=entry.figures.get("tau"),
            )
            for entry in registry.entries(service)
        ],
        runs=runs,
        lineages=list(_lineages(events, registry, by_pair)),
        costs=_costs(records, reused=()),
    )


def _decisions(
    store: ArtifactStore, records: Iterable[ArtifactRecord], service: str | None
) -> list[tuple[ArtifactRecord, dict[str, Any]]]:
    found = []
    for record in records:
        path = store.path(record.kind, record.key) / DECISION_FILE
        if record.kind == DECISION and path.exists():
            decision = json.loads(path.read_text(encoding="utf-8"))
            if service in (None, decision["service"]):
                found.append((record, decision))
    return found


def _runs(
    decisions: Sequence[tuple[ArtifactRecord, dict[str, Any]]],
    events: Sequence[Event],
    by_pair: Mapping[Pair, ArtifactRecord],
) -> list[Run]:
    """Each with what it made itself: what no earlier one was made from."""
    outcomes = {event.decision: event for event in events if event.event in ("promoted", "kept")}
    seen: set[Pair] = set()
    runs = []
    for record, decision in decisions:
        reached = set(_ancestors([(record.kind, record.key)], by_pair))
        event = outcomes.get(record.key)
        made = "promoted" if decision["promote"] else "kept"
        runs.append(
            Run(
                time=record.ended,
                service=decision["service"],
                decision=decision,
                outcome=event.event if event else f"{made}, not entered",
                reason=event.reason if event else decision["reason"],
                costs=_costs((by_pair[pair] for pair in sorted(reached)), reused=seen),
            )
        )
        seen |= reached
    return runs


def _ancestors(pairs: Iterable[Pair], by_pair: Mapping[Pair, ArtifactRecord]) -> list[Pair]:
    """The artifacts and all that they were made from, of those in the store, each after its inputs."""
    found: dict[Pair, None] = {}

    def visit(pair: Pair) -> None:
        record = by_pair.get(pair)
        if record is None or pair in found:
            return
        for kind, keys in record.inputs.items():
            for key in sorted(keys, key=lambda key: _item(by_pair.get((kind, key)))):
                visit((kind, key))
        found[pair] = None

    for pair in pairs:
        visit(pair)
    return list(found)


def _item(record: ArtifactRecord | None) -> str:
    return (record.item or "") if record else ""


def _costs(records: Iterable[ArtifactRecord], *, reused: Iterable[Pair]) -> list[StageCost]:
    """By stage, in the order of a pipeline."""
    before = set(reused)
    found: dict[str, list[ArtifactRecord]] = {}
    for record in records:
        found.setdefault(record.stage, []).append(record)
    costs = []
    for stage in sorted(found, key=lambda name: STAGE_NAMES.index(name) if name in STAGE_NAMES else len(STAGE_NAMES)):
        made = [record for record in found[stage] if (record.kind, record.key) not in before]
        costs.append(
            StageCost(
                stage=stage,
                made=len(made),
                reused=len(found[stage]) - len(made),
                seconds=sum(record.seconds for record in made),
                bytes=sum(record.bytes for record in made),
            )
        )
    return costs


def _benchmarks(records: Iterable[ArtifactRecord]) -> list[Measurement]:
    return [
        Measurement(
            time=record.ended,
            drafter=record.item or "drafter",
            key=",".join(record.inputs.get("drafter", [])),
            tokens_per_second=record.metrics.get("drafter_tokens_per_second"),
            tau=record.metrics.get("tau"),
            plain_tokens_per_second=record.metrics.get("plain_tokens_per_second"),
        )
        for record in records
        if record.kind == BENCHMARK
    ]


def _compared(runs: Iterable[Run]) -> list[Measurement]:
    return [
        Measurement(
            time=run.time,
            drafter=candidate["name"],
            key=candidate["drafter"],
            tokens_per_second=candidate["tokens_per_second"],
            tau=candidate["tau"],
            plain_tokens_per_second=run.decision["plain_tokens_per_second"],
            promoted=run.outcome == "promoted" and candidate["drafter"] == run.decision["best"]["drafter"],
        )
        for run in runs
        for candidate in run.decision["candidates"]
    ]


def _lineages(
    events: Sequence[Event], registry: DrafterRegistry, by_pair: Mapping[Pair, ArtifactRecord]
) -> Iterable[Lineage]:
    """Of the promoted drafter of each service, else of the newest that has an export."""
    for service in dict.fromkeys(event.service for event in events):
        promoted = registry.promoted(service)
        named = [event for event in events if event.service == service and event.export]
        chosen = promoted or (named[-1] if named else None)
        if chosen is None or chosen.export is None or (EXPORT, chosen.export) not in by_pair:
            continue
        pairs = _ancestors([(EXPORT, chosen.export)], by_pair)
        state = "promoted" if promoted else "newest"
        yield Lineage(
            service=service,
            note=f"What the {state} drafter {chosen.drafter[:12]} of service {service} was made from, from left to "
            "right. Slices of one stage are one box.",
            nodes=_nodes([by_pair[pair] for pair in pairs], main={chosen.drafter, chosen.export}),
        )


def _nodes(records: Sequence[ArtifactRecord], *, main: set[str]) -> list[GraphNode]:
    """One per artifact; those of slices, which have a number for an item, are one per stage."""
    boxes: dict[str, list[ArtifactRecord]] = {}
    box_of: dict[Pair, str] = {}
    for record in records:
        sliced = (record.item or "").isdigit()
        name = f"{record.stage}:slices" if sliced else f"{record.kind}/{record.key}"
        boxes.setdefault(name, []).append(record)
        box_of[record.kind, record.key] = name
    nodes = []
    for name, members in _after_needs(boxes, box_of):
        first, size = members[0], sum(record.bytes for record in members)
        about = f"{len(members)} slices" if name.endswith(":slices") else first.item or first.key[:8]
        seconds = sum(record.seconds for record in members)
        nodes.append(
            GraphNode(
                id=name,
                stage=first.stage,
                label=f"{first.stage} {about}"[:21],
                detail=f"{seconds:,.1f} s, {size / 1e6:,.1f} MB",
                needs=sorted(_needs(members, box_of) - {name}),
                main=any(record.key in main for record in members),
            )
        )
    return nodes


def _needs(members: Iterable[ArtifactRecord], box_of: Mapping[Pair, str]) -> set[str]:
    pairs = ((kind, key) for record in members for kind, keys in record.inputs.items() for key in keys)
    return {box_of[pair] for pair in pairs if pair in box_of}


def _after_needs(
    boxes: Mapping[str, list[ArtifactRecord]], box_of: Mapping[Pair, str]
) -> Iterable[tuple[str, list[ArtifactRecord]]]:
    """Boxes, each after those it needs: a box of slices comes after the needs of its last slice."""
    left = dict(boxes)
    while left:
        ready = next((n for n in left if not (_needs(left[n], box_of) - {n}) & set(left)), next(iter(left)))
        yield ready, left.pop(ready)
