"""The registry of drafters: states and history, kills at any byte, two writers, the link that servers load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specflow.workflow.collection import collect_garbage
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.promoting import enter_decision, promote, rollback
from specflow.workflow.promotion import DrafterRegistry, Event, RegistryError, now
from specflow.workflow.store import ArtifactStore

ROOT = Path(__file__).resolve().parents[2]
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def commit(store: ArtifactStore, kind: str, key: str, files: dict[str, str], **inputs: list[str]) -> None:
    about: dict[str, Any] = {"parameters": {}, "key_parameters": {}, "code_version": "1", "item": None}
    attempt = Attempt(store, Recipe(kind=kind, key=key, stage=kind, inputs=inputs, **about))
    attempt.prepare()
    for name, text in files.items():
        (attempt.output / name).parent.mkdir(parents=True, exist_ok=True)
        (attempt.output / name).write_text(text)
    attempt.commit({})


def export_of(drafter: str) -> str:
    return "e" + drafter[1:]


def add_drafter(store: ArtifactStore, drafter: str) -> None:
    """A drafter, made from features, and its export."""
    commit(store, "drafter", drafter, {"w": "1"}, features=["f" * 64])
    commit(store, "export", export_of(drafter), {"draft/config.json": f'{{"of": "{drafter[0]}"}}'}, drafter=[drafter])


def add_decision(store: ArtifactStore, key: str, drafter: str, *, promote: bool, over: str | None = None) -> str:
    best = {"name": "x", "drafter": drafter, "export": export_of(drafter), "tokens_per_second": 20.0, "tau": 2.5}
    record = {
        "service": "chat",
        "promote": promote,
        "reason": "because",
        "best": {**best, "gain": {"ratio": 1.5}},
        "candidates": [best],
        "baseline": {"drafter": over, "tokens_per_second": 10.0},
        "plain_tokens_per_second": 9.0,
        "rule": {"concurrency": 4},
    }
    commit(store, "decision", key * 64, {"decision.json": json.dumps(record)})
    return key * 64


def states(store: ArtifactStore) -> dict[str, str]:
    return {entry.drafter[0]: entry.state for entry in DrafterRegistry(store).entries("chat")}


def served(store: ArtifactStore) -> str:
    """What a server finds at the stable path."""
    found: str = json.loads((store.root / "promoted" / "chat" / "config.json").read_text())["of"]
    return found


def test_candidate_promoted_retired_and_back(store: ArtifactStore) -> None:
    for drafter in (A, B, C):
        add_drafter(store, drafter)
    assert "is promoted: because" in enter_decision(store, add_decision(store, "1", A, promote=True))
    assert (states(store), served(store)) == ({"a": "promoted"}, "a")
    assert "is kept: because" in enter_decision(store, add_decision(store, "2", B, promote=False, over=A))
    assert (states(store), served(store)) == ({"a": "promoted", "b": "candidate"}, "a")
    enter_decision(store, add_decision(store, "3", C, promote=True, over=A))
    assert (states(store), served(store)) == ({"a": "retired", "b": "candidate", "c": "promoted"}, "c")
    promote(store, "chat", B[:5], reason="I know better")
    assert (states(store), served(store)) == ({"a": "retired", "b": "promoted", "c": "retired"}, "b")
    taken, now_promoted = rollback(store, "chat", reason="I did not")
    assert now_promoted is not None
    assert (taken.drafter, now_promoted.drafter, served(store)) == (B, C, "c")
    rollback(store, "chat", reason="further")
    assert (states(store), served(store)) == ({"a": "promoted", "b": "retired", "c": "retired"}, "a")
    assert rollback(store, "chat", reason="to plain decoding")[1] is None
    assert set(states(store).values()) == {"retired"}
    assert not (store.root / "promoted" / "chat").is_symlink()
    with pytest.raises(RegistryError, match="no drafter is promoted; services in the registry: chat"):
        rollback(store, "chat", reason="more")
    events = [event.event for event in DrafterRegistry(store).events()]
    assert events == [
        "candidate",
        "promoted",
        "candidate",
        "kept",
        "candidate",
        "promoted",
        "promoted",
        *["rolled back"] * 3,
    ]
    entry = DrafterRegistry(store).entries("chat")[0]
    assert entry.figures == {
        "tokens_per_second": 20.0, "tau": 2.5, "ratio": 1.5, "baseline_tokens_per_second": 10.0,
        "plain_tokens_per_second": 9.0, "concurrency": 4,
    }  # fmt: skip


def test_a_decision_about_another_incumbent_than_the_present_one_promotes_nothing(store: ArtifactStore) -> None:
    for drafter in (A, B, C):
        add_drafter(store, drafter)
    enter_decision(store, add_decision(store, "1", A, promote=True))
    late = add_decision(store, "2", B, promote=True, over=A)
    promote(store, "chat", C, reason="meanwhile")
    assert "another drafter was promoted since it was compared (cccccccccccc)" in enter_decision(store, late)
    assert (states(store), served(store)) == ({"a": "retired", "c": "promoted", "b": "candidate"}, "c")
    assert enter_decision(store, late) == f"chat: decided before; drafter {C[:12]} is what runs"


def test_refusals_say_what_to_do(store: ArtifactStore) -> None:
    add_drafter(store, A)
    add_drafter(store, "a" + "0" * 63)
    with pytest.raises(RegistryError, match="'a' names several drafters"):
        promote(store, "chat", "a", reason="")
    with pytest.raises(RegistryError, match="`specflow export` makes an export"):
        promote(store, "chat", "0", reason="")
    promote(store, "chat", f"drafter/{A}", reason="")
    with pytest.raises(RegistryError, match="promoted already"):
        promote(store, "chat", A, reason="")
    add_drafter(store, B)
    (store.path("export", export_of(B)) / "draft" / "config.json").write_text("{}")
    with pytest.raises(RegistryError, match="is damaged"):
        promote(store, "chat", B, reason="")
    assert served(store) == "a"


def test_a_kill_at_any_byte_of_a_line_loses_that_line_only(store: ArtifactStore) -> None:
    add_drafter(store, A)
    add_drafter(store, B)
    registry = DrafterRegistry(store)
    promote(store, "chat", A, reason="first")
    path = store.root / ".drafters" / "history.jsonl"
    whole = path.read_bytes()
    promote(store, "chat", B, reason="second\nline")
    line = path.read_bytes()[len(whole) :]
    for cut in range(len(line)):
        path.write_bytes(whole + line[:cut])
        assert [event.drafter for event in registry.events()] == [A], cut
        if cut % 40 == 0 or cut == len(line) - 1:
            promote(store, "chat", B, reason="again")
            assert [event.reason for event in registry.events()] == ["first", "again"]
            assert served(store) == "b"
    path.write_bytes(whole + line)
    assert [event.reason for event in registry.events()] == ["first", "second\nline"]


def test_a_kill_between_line_and_link_is_healed_by_the_next_writer(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_drafter(store, A)
    add_drafter(store, B)
    promote(store, "chat", A, reason="")
    with monkeypatch.context() as patch:
        patch.setattr(DrafterRegistry, "_relink", lambda self: None)
        promote(store, "chat", B, reason="killed here")
    assert served(store) == "a"
    (store.root / "promoted" / ".chat.partial").symlink_to("nowhere")
    with DrafterRegistry(store).writing():
        pass
    assert served(store) == "b"
    # Relative: the store may be moved.
    store.root.rename(store.root.with_name("moved"))
    assert served(ArtifactStore(store.root.with_name("moved"))) == "b"


def test_a_damaged_line_is_named(store: ArtifactStore) -> None:
    add_drafter(store, A)
    promote(store, "chat", A, reason="")
    path = store.root / ".drafters" / "history.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"event"', b'"evnet"') + b"{}\n")
    with pytest.raises(RegistryError, match=r"history.jsonl:1: expected an event"):
        DrafterRegistry(store).events()


WRITER = """
import sys
from pathlib import Path
from specflow.workflow.promotion import DrafterRegistry, Event, now
from specflow.workflow.store import ArtifactStore
registry = DrafterRegistry(ArtifactStore(Path(sys.argv[1])))
for number in range(30):
    with registry.writing() as writer:
        count = len(registry.events())
        writer.add(Event(event="candidate", service=sys.argv[2], drafter=f"{count:064}", reason="r" * 5000, time=now()))
"""


def test_two_writers_lose_nothing(store: ArtifactStore) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(store.root), name], env=environment) for name in "xy"
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    events = DrafterRegistry(store).events()
    assert [int(event.drafter) for event in events] == list(range(60)), "each saw all lines before its own"
    assert {event.service for event in events} == {"x", "y"}


def test_garbage_collection_keeps_what_the_registry_names(store: ArtifactStore) -> None:
    commit(store, "features", "f" * 64, {"x": "1"})
    for drafter in (A, B, C):
        add_drafter(store, drafter)
    decision = add_decision(store, "1", A, promote=True)
    enter_decision(store, decision)
    promote(store, "chat", B, reason="")
    removed = collect_garbage(store, [], dry_run=False)
    assert {entry.name for entry in removed} == {f"drafter/{C}", f"export/{export_of(C)}", f"features/{'f' * 64}"}
    assert served(store) == "b"
    assert set(store.pairs()) == {
        ("drafter", A), ("drafter", B), ("export", export_of(A)), ("export", export_of(B)), ("decision", decision),
    }  # fmt: skip
    rollback(store, "chat", reason="")
    assert served(store) == "a"


def test_services_do_not_mix(store: ArtifactStore) -> None:
    add_drafter(store, A)
    add_drafter(store, B)
    promote(store, "chat", A, reason="")
    promote(store, "code", B, reason="")
    rollback(store, "code", reason="")
    assert (states(store), served(store)) == ({"a": "promoted"}, "a")
    with DrafterRegistry(store).writing() as writer:
        writer.add(Event(event="candidate", service="code", drafter=A, time=now()))
    assert [(e.service, e.state) for e in DrafterRegistry(store).entries()] == [
        ("chat", "promoted"), ("code", "retired"), ("code", "candidate"),
    ]  # fmt: skip
