"""Artifacts exist whole or not at all, and damage is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from filelock import Timeout

from specflow.features.location import Bucket, StorageError, keep_elsewhere
from specflow.stages.contract import Artifact, StageError
from specflow.workflow.collection import collect_garbage
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.store import ArtifactNotFound, ArtifactStore


def recipe(key: str, kind: str = "numbers", **inputs: list[str]) -> Recipe:
    return Recipe(
        kind=kind,
        key=key,
        stage="source",
        item=None,
        code_version="c",
        parameters={"p": 1},
        key_parameters={"p": 1},
        inputs=inputs,
    )


def commit(store: ArtifactStore, key: str, kind: str = "numbers", **inputs: list[str]) -> Artifact:
    attempt = Attempt(store, recipe(key, kind, **inputs))
    attempt.prepare()
    (attempt.output / "deep").mkdir()
    (attempt.output / "a.bin").write_bytes(bytes(range(256)) * 10)
    (attempt.output / "deep" / "b.txt").write_text("words")
    return attempt.commit({"rows": 3})


def test_commit_records_everything_and_leaves_no_work(store: ArtifactStore) -> None:
    made = commit(store, "ab12", tokens=["t1", "t2"])
    record = store.record("numbers", "ab12")
    assert record is not None
    assert {name: file.size for name, file in record.files.items()} == {"a.bin": 2560, "deep/b.txt": 5}
    assert record.inputs == {"tokens": ["t1", "t2"]}
    assert record.metrics == {"rows": 3}
    assert record.environment["packages"]["torch"]
    assert record.bytes == 2565
    assert record.ended >= record.started
    assert store.find("numbers", "ab12") == made
    assert store.verify(made) == []
    assert not (store.work / "numbers-ab12").exists()


def test_output_of_a_killed_attempt_is_dropped_and_its_scratch_kept(store: ArtifactStore) -> None:
    killed = Attempt(store, recipe("ab"))
    killed.prepare()
    (killed.output / "half").write_text("ha")
    (killed.scratch / "piece").write_text("whole")
    assert store.find("numbers", "ab") is None
    again = Attempt(store, recipe("ab"))
    again.prepare()
    assert list(again.output.iterdir()) == []
    assert (again.scratch / "piece").read_text() == "whole"


def test_scratch_made_from_inputs_of_other_content_is_dropped(store: ArtifactStore) -> None:
    def piece_after(digests: dict[str, str]) -> bool:
        again = Attempt(store, recipe("ab", tokens=["t"]))
        again.prepare(digests)
        kept = (again.scratch / "piece").exists()
        (again.scratch / "piece").write_text("whole")
        return kept

    assert [piece_after({"tokens/t": digest}) for digest in ("1", "1", "2", "2", "1")] == [
        False,
        True,
        False,
        True,
        False,
    ]
    last = Attempt(store, recipe("ab", tokens=["t"]))
    last.prepare({"tokens/t": "1"})
    (last.output / "a").write_text("a")
    last.commit({})
    record = store.record("numbers", "ab")
    assert record is not None
    assert record.input_digests == {"tokens/t": "1"}


def _flip(path: Path) -> None:
    data = bytearray((path / "a.bin").read_bytes())
    data[100] ^= 1
    (path / "a.bin").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_flip, "a.bin sha256 differs"),
        (lambda path: (path / "deep" / "b.txt").unlink(), "deep/b.txt is missing"),
        (lambda path: (path / "deep" / "b.txt").write_text("w"), "deep/b.txt has 1 bytes, 5 were committed"),
        (lambda path: (path / "new").write_text(""), "new does not belong"),
        (lambda path: (path / "artifact.json").write_text("{"), "artifact.json is missing or unreadable"),
    ],
)
def test_each_kind_of_damage_is_found(store: ArtifactStore, damage: Any, problem: str) -> None:
    made = commit(store, "ab")
    damage(made.path)
    assert store.verify(made) == [problem]


def test_quarantine_makes_room_for_the_same_key(store: ArtifactStore) -> None:
    made = commit(store, "ab")
    _flip(made.path)
    moved = store.quarantine("numbers", "ab")
    assert moved.parent == store.damaged
    assert (moved / "a.bin").exists()
    assert store.verify(commit(store, "ab")) == []


@pytest.mark.parametrize("metrics", [{"loss": float("nan")}, {"by": [{"tau": float("inf")}]}])
def test_metrics_that_are_no_numbers_are_refused(store: ArtifactStore, metrics: dict[str, Any]) -> None:
    attempt = Attempt(store, recipe("ab"))
    attempt.prepare()
    (attempt.output / "f").write_text("")
    with pytest.raises(StageError, match="not a finite number"):
        attempt.commit(metrics)
    assert store.find("numbers", "ab") is None


def test_an_empty_artifact_is_refused(store: ArtifactStore) -> None:
    attempt = Attempt(store, recipe("ab"))
    attempt.prepare()
    with pytest.raises(StageError, match="wrote no file"):
        attempt.commit({})


def test_resolve_by_prefix(store: ArtifactStore) -> None:
    commit(store, "abc1")
    commit(store, "abd2")
    commit(store, "abc1", kind="scaled")
    assert store.resolve("abd").key == "abd2"
    assert store.resolve("scaled/abc").kind == "scaled"
    with pytest.raises(ArtifactNotFound, match=r"names 2 artifacts: numbers/abc1, scaled/abc1"):
        store.resolve("abc")
    with pytest.raises(ArtifactNotFound, match="no artifact starts with 'x'"):
        store.resolve("x")


def test_one_holder_per_key(store: ArtifactStore) -> None:
    with store.lock("numbers", "ab"), pytest.raises(Timeout):
        store.lock("numbers", "ab", timeout=0).acquire()
    with store.lock("numbers", "ab", timeout=0):
        pass


def test_garbage_is_what_nothing_reaches(store: ArtifactStore) -> None:
    commit(store, "base")
    commit(store, "kept", kind="scaled", numbers=["base"])
    commit(store, "old", kind="scaled", numbers=["base"])
    commit(store, "broken")
    store.quarantine("numbers", "broken")
    unfinished = Attempt(store, recipe("part"))
    unfinished.prepare()
    held = Attempt(store, recipe("held"))
    held.prepare()
    arguments: dict[str, Any] = {"reachable": [("scaled", "kept")], "leftover_seconds": 0.0}
    with store.lock("numbers", "held"):
        planned = collect_garbage(store, dry_run=True, **arguments)
        assert len(store.list()) == 3
        removed = collect_garbage(store, dry_run=False, **arguments)
    assert planned == removed
    names = [(r.what, r.name.split("-1")[0]) for r in removed]
    assert names[0] == ("artifact", "scaled/old")
    assert [what for what, _ in names] == ["artifact", "damaged artifact", "unfinished work"]
    assert removed[0].bytes > 2565
    assert [(a.kind, a.key) for a in store.list()] == [("numbers", "base"), ("scaled", "kept")]
    assert held.output.exists()
    assert not unfinished.path.exists()
    assert collect_garbage(store, [("scaled", "kept")], dry_run=False) == []


def test_garbage_in_object_storage_goes_with_what_points_to_it(store: ArtifactStore, tmp_path: Path) -> None:
    def at(name: str) -> Bucket:
        place = Bucket(f"file://{tmp_path}/remote/{name}")
        place.put("shard-00000/COMMIT.json", b"12345")
        return place

    places = {name: at(name) for name in ("kept", "old", "half", "running")}
    for key in ("kept", "old", "broken"):
        attempt = Attempt(store, recipe(key))
        attempt.prepare()
        # What is damaged was made again under its key, and so at the same place.
        keep_elsewhere(attempt.output, places["kept" if key == "broken" else key])
        attempt.commit({})
    store.quarantine("numbers", "broken")
    for key in ("half", "running"):
        attempt = Attempt(store, recipe(key))
        attempt.prepare()
        keep_elsewhere(attempt.scratch, places[key])
    arguments: dict[str, Any] = {"reachable": [("numbers", "kept")], "leftover_seconds": 0.0}
    with store.lock("numbers", "running"):
        planned = collect_garbage(store, dry_run=True, **arguments)
        assert all(place.sizes() for place in places.values())
        assert collect_garbage(store, dry_run=False, **arguments) == planned
    remote = [(r.name, r.bytes) for r in planned if r.what == "remote data"]
    assert remote == [(str(places["old"]), 5), (str(places["half"]), 5)]
    assert [name for name, place in places.items() if place.sizes()] == ["kept", "running"]


def test_what_cannot_be_reached_keeps_its_pointer(store: ArtifactStore) -> None:
    attempt = Attempt(store, recipe("far"))
    attempt.prepare()
    keep_elsewhere(attempt.output, Bucket("nowhere://bucket/prefix"))
    attempt.commit({})
    with pytest.raises(StorageError, match="nowhere://bucket/prefix"):
        collect_garbage(store, [], dry_run=False)
    assert store.find("numbers", "far") is not None
