"""What changes the registry of drafters: a decision, a promotion by hand, a rollback."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from specflow.config.gate import PROMOTED
from specflow.stages.gate import DECISION_FILE, KIND
from specflow.workflow.promotion import DRAFT, DrafterRegistry, Event, RegistryError, figures_of, now
from specflow.workflow.record import ArtifactRecord
from specflow.workflow.store import ArtifactStore


def enter_decision(store: ArtifactStore, key: str) -> str:
    """Enter a decision, once however often it is called; returns one line about what came of it.

    The promoted drafter stays where it is no longer the one that the decision compared with.
    """
    registry = DrafterRegistry(store)
    path = store.path(KIND, key) / DECISION_FILE
    decision = json.loads(path.read_text(encoding="utf-8"))
    best, service = decision["best"], decision["service"]
    with registry.writing() as writer:
        promoted = registry.promoted(service)
        if registry.decided(key):
            return _state_line(service, promoted)
        known = {entry.drafter: entry for entry in registry.entries(service)}
        common = {"service": service, "decision": key, "time": now()}
        for candidate in decision["candidates"]:
            if candidate["drafter"] not in known:
                about = {k: candidate[k] for k in ("drafter", "export", "name")}
                writer.add(Event(event="candidate", reason="trained", **about, **common))
        obstacle = "" if decision["promote"] else decision["reason"]
        if not obstacle and (promoted.drafter if promoted else None) != decision["baseline"]["drafter"]:
            is_now = promoted.drafter[:12] if promoted else "none"
            obstacle = f"another drafter was promoted since it was compared ({is_now}): retrain once more"
        if not obstacle and best["drafter"] in known and known[best["drafter"]].rolled_back:
            obstacle = f"{best['name']} was rolled back before: promote it by hand if it is meant"
        outcome = Event(
            event="kept" if obstacle else "promoted",
            drafter=best["drafter"],
            export=best["export"],
            name=best["name"],
            reason=obstacle or decision["reason"],
            figures=figures_of(path),
            **common,
        )
        writer.add(outcome)
    if obstacle:
        return f"{service}: {_what(promoted)} is kept: {obstacle}"
    return f"{service}: {best['name']} ({best['drafter'][:12]}) is promoted: {outcome.reason}"


def enter_failure(
    store: ArtifactStore, inputs: Iterable[tuple[str, str]], *, service: str, reason: str
) -> Iterator[str]:
    """Enter that nothing could be decided about the drafters among ``inputs``, once; yields a line for each.

    Drafters that were never made are in no store, hence in no registry.
    """
    registry = DrafterRegistry(store)
    records = [record for kind, key in inputs if kind == "drafter" and (record := store.record(kind, key))]
    for record in (record for record in records if record.item != PROMOTED):
        with registry.writing() as writer:
            promoted = registry.promoted(service)
            own = [e for e in registry.events() if (e.service, e.drafter) == (service, record.key)]
            if not own or own[-1].reason != reason:
                name = record.item or ""
                writer.add(
                    Event(event="kept", service=service, drafter=record.key, name=name, reason=reason, time=now())
                )
        yield f"{service}: {_what(promoted)} is kept: {reason}"


def promote(store: ArtifactStore, service: str, drafter: str, *, reason: str) -> Event:
    """Promote by hand. ``drafter``: start of the key of a drafter or of an export. Raises ``RegistryError``."""
    registry = DrafterRegistry(store)
    export = _export_of(store, registry, drafter)
    key = export.inputs["drafter"][0]
    with registry.writing() as writer:
        now_promoted = registry.promoted(service)
        if now_promoted and (now_promoted.drafter, now_promoted.export) == (key, export.key):
            raise RegistryError(f"{service}: drafter {key[:12]} is promoted already")
        known = next((e for e in registry.entries(service) if e.drafter == key), None)
        event = Event(
            event="promoted",
            service=service,
            drafter=key,
            export=export.key,
            name=export.item or "",
            reason=reason,
            figures=known.figures if known else {},
            time=now(),
        )
        writer.add(event)
    return event


def rollback(store: ArtifactStore, service: str, *, reason: str) -> tuple[Event, Event | None]:
    """Retire the promoted drafter; the one before it is promoted again, or none. Raises ``RegistryError``.

    Returns what was taken back, and what is promoted now. The gate never promotes the retired one again.
    """
    registry = DrafterRegistry(store)
    with registry.writing() as writer:
        taken = registry.promoted(service)
        if taken is None:
            known = ", ".join(sorted({e.service for e in registry.events()})) or "none"
            raise RegistryError(f"{service}: no drafter is promoted; services in the registry: {known}")
        last = registry.before(taken)
        if last and not _loadable(store, last.export):
            raise RegistryError(
                f"{service}: the export of drafter {last.drafter[:12]}, promoted before, is damaged or gone: run its "
                "flow again, or promote another drafter"
            )
        writer.add(
            Event(
                event="rolled back", service=service, drafter=taken.drafter, export=taken.export, name=taken.name,
                reason=reason, time=now(),
            )
        )  # fmt: skip
    return taken, registry.promoted(service)


def _export_of(store: ArtifactStore, registry: DrafterRegistry, start: str) -> ArtifactRecord:
    start = start.removeprefix("drafter/").removeprefix("export/")
    exports = [record for record in store.records() if record.kind == "export"]
    found = [r for r in exports if r.key.startswith(start) or r.inputs["drafter"][0].startswith(start)]
    if len({record.inputs["drafter"][0] for record in found}) > 1:
        listed = ", ".join(f"{record.inputs['drafter'][0][:16]} {record.item or ''}".strip() for record in found)
        raise RegistryError(f"{start!r} names several drafters: {listed}; give more characters")
    if not found:
        raise RegistryError(
            f"no drafter with an export starts with {start!r} in {store.root}; `specflow status` lists the artifacts, "
            "`specflow export` makes an export"
        )
    # Of several exports of one drafter the newest.
    if damage := store.verify_key("export", found[-1].key):
        raise RegistryError(f"export/{found[-1].key[:12]} is damaged ({damage[0]}): run its flow again")
    return found[-1]


def _loadable(store: ArtifactStore, export: str | None) -> bool:
    return export is not None and (store.path("export", export) / DRAFT / "config.json").is_file()


def _what(promoted: Event | None) -> str:
    return f"drafter {promoted.drafter[:12]}" if promoted else "plain decoding"


def _state_line(service: str, promoted: Event | None) -> str:
    return f"{service}: decided before; {_what(promoted)} is what runs"
