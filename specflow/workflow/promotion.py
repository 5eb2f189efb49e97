"""The registry of drafters: which one of a service is promoted, which were, and why.

``.drafters/history.jsonl`` in the store has a line per event and is only ever appended to; every state is computed
from it. A line counts once it is whole: what a kill left of one is dropped by the next writer. ``promoted/<service>``
is a link to the export of the promoted drafter. It is switched by a rename after the line is on disk, and put right by
whoever holds the lock next, so a kill between the two is healed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError

from specflow.workflow.commit import flush
from specflow.workflow.store import ArtifactStore

State = Literal["candidate", "promoted", "retired"]
FOLDER, HISTORY, LINKS = ".drafters", "history.jsonl", "promoted"
DRAFT = "draft"
"""Folder of an export that a server loads."""


class RegistryError(Exception):
    """The registry cannot do or read what it should; the message says what to do."""


class Event(BaseModel):
    """One line. ``promoted`` also retires the drafter promoted before; ``rolled back`` retires ``drafter``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: Literal["candidate", "promoted", "kept", "rolled back"]
    service: str
    drafter: str
    """Key of the artifact."""
    export: str | None = None
    name: str = ""
    """The drafter's name in its configuration."""
    decision: str | None = None
    """Key of the decision that it follows from; none: by hand."""
    reason: str = ""
    figures: dict[str, Any] = {}
    time: datetime
    format: Literal[1] = 1


class Entry(BaseModel):
    """What is known of one drafter of a service."""

    service: str
    drafter: str
    name: str
    export: str | None
    state: State
    since: datetime
    reason: str
    figures: dict[str, Any]
    rolled_back: bool = False


class DrafterRegistry:
    """Safe for any number of processes: writers hold one lock, readers see whole lines."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._path = store.root / FOLDER / HISTORY

    def events(self) -> list[Event]:
        """All events, oldest first. Raises ``RegistryError`` for a line that is whole and wrong."""
        return [self._parsed(number, line) for number, line in enumerate(self._lines(), start=1)]

    def promoted(self, service: str) -> Event | None:
        """The event that promoted what is promoted now."""
        stack = self._stack(service, self.events())
        return stack[-1] if stack else None

    def before(self, event: Event) -> Event | None:
        """What was promoted when ``event`` came."""
        events = self.events()
        stack = self._stack(event.service, events[: events.index(event)])
        return stack[-1] if stack else None

    def entries(self, service: str | None = None) -> list[Entry]:
        """The drafters of a service, or of all, in the order in which they became known."""
        found: dict[tuple[str, str], Entry] = {}
        for event in self.events():
            if service is None or event.service == service:
                _apply(found, event)
        promoted = {(e.service, e.drafter) for s in {s for s, _ in found} if (e := self.promoted(s))}
        for key, entry in found.items():
            if key in promoted and entry.state != "promoted":
                found[key] = entry.model_copy(update={"state": "promoted", "reason": "again, after a rollback"})
        return list(found.values())

    def named(self) -> set[tuple[str, str]]:
        """``(kind, key)`` of every artifact that the registry names."""
        return {
            (kind, key)
            for event in self.events()
            for kind, key in (("drafter", event.drafter), ("export", event.export), ("decision", event.decision))
            if key is not None
        }

    def decided(self, decision: str) -> bool:
        """Whether a decision was entered."""
        return any(event.decision == decision for event in self.events())

    def link(self, service: str) -> Path:
        """The path that always names the promoted export."""
        return self._store.root / LINKS / service

    @contextmanager
    def writing(self) -> Iterator[_Writer]:
        """Add events, all seen by no other writer in between; the links are right afterwards."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._path.parent / "lock"):
            writer = _Writer(self, self._path)
            try:
                yield writer
            finally:
                self._relink()

    def _lines(self) -> list[bytes]:
        return self._whole().split(b"\n")[:-1]

    def _whole(self) -> bytes:
        """The whole lines; one without its end was not finished."""
        data = self._path.read_bytes() if self._path.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    def _parsed(self, number: int, line: bytes) -> Event:
        try:
            return Event.model_validate_json(line)
        except ValidationError as error:
            raise RegistryError(
                f"{self._path}:{number}: expected an event of the registry, found {line[:80]!r}: restore the line from "
                "a backup, or remove it if it is foreign"
            ) from error

    @staticmethod
    def _stack(service: str, events: list[Event]) -> list[Event]:
        """Promotions in force, the present one last: a rollback takes the last one off."""
        stack: list[Event] = []
        for event in events:
            if event.service == service and event.event == "promoted":
                stack.append(event)
            elif event.service == service and event.event == "rolled back" and stack:
                stack.pop()
        return stack

    def _relink(self) -> None:
        for service in {event.service for event in self.events()}:
            promoted = self.promoted(service)
            self._switch(self.link(service), promoted.export if promoted else None)

    def _switch(self, link: Path, export: str | None) -> None:
        """Relative, so that the store may be moved; replaced by a rename, so that it is never absent."""
        wanted = Path("..", "export", export, DRAFT) if export else None
        found = link.readlink() if link.is_symlink() else None
        if found == wanted:
            return
        if wanted is None:
            link.unlink()
        else:
            link.parent.mkdir(parents=True, exist_ok=True)
            partial = link.with_name(f".{link.name}.partial")
            partial.unlink(missing_ok=True)
            partial.symlink_to(wanted)
            partial.replace(link)
        flush(link.parent)


class _Writer:
    def __init__(self, registry: DrafterRegistry, path: Path) -> None:
        self._registry, self._path = registry, path

    def add(self, event: Event) -> None:
        """On disk when this returns."""
        whole = self._registry._whole()
        created = not self._path.exists()
        with self._path.open("ab", buffering=0) as file:
            file.truncate(len(whole))  # of what a kill left
            file.write(event.model_dump_json(exclude_none=True).encode() + b"\n")
            os.fsync(file.fileno())
        if created:
            flush(self._path.parent)


def now() -> datetime:
    return datetime.now(UTC)


def _apply(found: dict[tuple[str, str], Entry], event: Event) -> None:
    """Every promotion retires the others; which one is promoted now is decided from all of them."""
    key = (event.service, event.drafter)
    if event.event == "promoted":
        for other, entry in found.items():
            if other[0] == event.service and entry.state == "promoted":
                found[other] = _moved(entry, "retired", event, reason=f"{event.drafter[:12]} took its place")
    before = found.get(key)
    if before is None:
        before = found[key] = Entry(
            service=event.service,
            drafter=event.drafter,
            name=event.name,
            export=event.export,
            state="candidate",
            since=event.time,
            reason=event.reason,
            figures=event.figures,
        )
    if event.event == "promoted":
        found[key] = _moved(before, "promoted", event).model_copy(update={"rolled_back": False})
    elif event.event == "rolled back":
        found[key] = _moved(before, "retired", event).model_copy(update={"rolled_back": True})
    elif event.event == "kept":
        found[key] = before.model_copy(update={"reason": event.reason, "figures": {**before.figures, **event.figures}})


def _moved(entry: Entry, state: State, event: Event, *, reason: str | None = None) -> Entry:
    update: dict[str, Any] = {
        "state": state,
        "since": event.time,
        "reason": event.reason if reason is None else reason,
        "export": event.export or entry.export if event.drafter == entry.drafter else entry.export,
    }
    if event.drafter == entry.drafter:
        update["figures"] = {**entry.figures, **event.figures}
    return entry.model_copy(update=update)


def figures_of(decision: Path) -> dict[str, Any]:
    """What an event says of a decision: the figures of the best candidate and of what it was compared with."""
    record = json.loads(decision.read_text(encoding="utf-8"))
    best, base = record["best"], record["baseline"]
    return {
        "tokens_per_second": best["tokens_per_second"],
        "tau": best["tau"],
        "ratio": best["gain"]["ratio"] if best["gain"] else None,
        "baseline_tokens_per_second": base["tokens_per_second"],
        "plain_tokens_per_second": record["plain_tokens_per_second"],
        "concurrency": record["rule"]["concurrency"],
    }
