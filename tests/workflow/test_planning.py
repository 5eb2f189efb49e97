"""Plans say what would run and why, and refuse what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specflow.config.errors import InputErrors, Location
from specflow.workflow.commit import Attempt
from specflow.workflow.flow import Flow
from specflow.workflow.planning import Plan, plan
from specflow.workflow.registry import Registry
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import FakeConfig, ScaleParams, SourceParams, TotalParams


@pytest.fixture
def make(flow: Flow, registry: Registry, store: ArtifactStore) -> Any:
    def planned(config: FakeConfig | None = None, **options: Any) -> Plan:
        return plan(flow, config or FakeConfig(), store, registry=registry, **options)

    return planned


def fill(planned: Plan) -> None:
    """Commit an artifact for every node that has none."""
    for node in planned.to_run:
        attempt = Attempt(planned.store, node.recipe)
        records = [planned.store.record(kind, key) for kind, key in node.inputs]
        attempt.prepare({f"{r.kind}/{r.key}": r.content_digest for r in records if r})
        (attempt.output / "0").write_text(node.id)
        attempt.commit({})


def states(planned: Plan) -> dict[str, tuple[str, str]]:
    return {node.id: (node.state, node.reason) for node in planned.nodes}


def test_first_nothing_is_made_then_everything_is_cached(make: Any) -> None:
    first = make()
    assert states(first) == dict.fromkeys(("numbers", "scale:a", "scale:b", "total"), ("to run", "never made"))
    assert first.node("numbers").estimate.bytes == 3000
    assert first.bytes_needed == 3600
    fill(first)
    again = make()
    assert {node.state for node in again.nodes} == {"cached"}
    assert [n.key for n in again.nodes] == [n.key for n in first.nodes]
    assert again.bytes_needed == 0


def test_a_change_runs_its_node_and_what_depends_on_it(make: Any) -> None:
    fill(make())
    changed = make(FakeConfig(scales={"a": ScaleParams(factor=3), "b": ScaleParams(factor=10)}))
    assert states(changed) == {
        "numbers": ("cached", "made and verified"),
        "scale:a": ("to run", "parameters changed: factor 2 -> 3"),
        "scale:b": ("cached", "made and verified"),
        "total": ("to run", "input scaled changed"),
    }
    # Known before scale:a runs, and the duration is the last one's.
    assert changed.node("total").estimate.note == "as long as last time"
    slow = make(FakeConfig(source=SourceParams(seconds=9.0)))
    assert {node.state for node in slow.nodes} == {"cached"}


def test_changed_code_is_a_reason(make: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(make())
    original = Registry.code_version
    monkeypatch.setattr(
        Registry, "code_version", lambda self, name: original(self, name) + ("x" if name == "total" else "")
    )
    assert states(make())["total"] == ("to run", "code changed")


def test_damage_is_a_reason_and_does_not_spread(make: Any, store: ArtifactStore) -> None:
    fill(make())
    node = make().node("scale:b")
    (store.path(node.kind, node.key) / "0").write_text("SCALE:B")
    damaged = make()
    assert states(damaged)["scale:b"] == ("to run", "damaged: 0 sha256 differs")
    assert states(damaged)["total"][0] == "cached"
    assert damaged.node("total").reason == "made and verified; made again if scale:b comes out with other content"
    unread = make(verify=False)
    assert (unread.node("scale:b").state, unread.node("scale:b").reason) == ("cached", "made")


def test_a_removed_artifact_is_made_again(make: Any, store: ArtifactStore) -> None:
    first = make()
    fill(first)
    store.remove("total", first.node("total").key)
    assert states(make())["total"] == ("to run", "never made")


def test_disk_too_small(make: Any) -> None:
    planned = make(FakeConfig(total=TotalParams(bytes=10_000_000_000)), free_bytes=lambda path: 5_000_000_000)
    (problem,) = planned.problems
    assert problem.found == "5.00 GB free"
    assert problem.expected.startswith("12.00 GB (1.2 x the estimates; total 10.00 GB")
    assert {node.state for node in planned.nodes} == {"blocked"}
    assert not make(free_bytes=lambda path: 3600).problems
    assert make(free_bytes=lambda path: 3599).problems


def test_a_stage_alone_needs_its_inputs(make: Any) -> None:
    alone = make(only={"scale"})
    assert states(alone) == dict.fromkeys(("scale:a", "scale:b"), ("blocked", "needs numbers"))
    (problem,) = alone.problems
    assert "numbers" in problem.message
    assert problem.hint == "run `specflow source` first, or add --upstream"
    assert [n.id for n in make(only={"scale:b"}, upstream=True).nodes] == ["numbers", "scale:b"]
    assert len(make(only={"scale"}).keys) == 4
    fill(make(only={"source"}))
    ready = make(only={"scale"})
    assert not ready.problems
    assert {node.state for node in ready.nodes} == {"to run"}
    fill(ready)
    assert {node.state for node in make(only={"scale"}).nodes} == {"cached"}


def test_an_unknown_stage_is_refused_with_the_nearest(make: Any) -> None:
    with pytest.raises(InputErrors, match="did you mean `scale`"):
        make(only={"scal"})


def test_keys_survive_a_move_of_the_files(make: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_text("same")
    first = make(FakeConfig(source=SourceParams(data=tmp_path / "one" / "data")))
    second = make(FakeConfig(source=SourceParams(data=tmp_path / "two" / "data")))
    assert first.keys == second.keys
    (tmp_path / "two" / "data").write_text("other")
    third = make(FakeConfig(source=SourceParams(data=tmp_path / "two" / "data")))
    assert not set(first.keys) & set(third.keys)


def remake(planned: Plan, name: str, text: str) -> None:
    """Replace the artifact of a node by one of other content under the same key."""
    node = planned.node(name)
    planned.store.remove(node.kind, node.key)
    attempt = Attempt(planned.store, node.recipe)
    attempt.prepare()
    (attempt.output / "0").write_text(text)
    attempt.commit({})


def test_an_input_with_other_content_under_its_key_is_a_reason(make: Any) -> None:
    fill(make())
    remake(make(), "scale:b", "scale:b")
    assert {node.state for node in make().nodes} == {"cached"}
    remake(make(), "scale:b", "other")
    assert states(make()) == {
        "numbers": ("cached", "made and verified"),
        "scale:a": ("cached", "made and verified"),
        "scale:b": ("cached", "made and verified"),
        "total": ("to run", "input scaled was made again with other content"),
    }
    remake(make(), "numbers", "other")
    again = make()
    assert [node.id for node in again.to_run] == ["scale:a", "total"]
    assert again.node("total").reason == "; ".join(
        [f"input {kind} was made again with other content" for kind in ("numbers", "scaled")]
    )
    # Its input is there, but not the one to read: alone, the stage would use what is about to be replaced.
    (problem,) = make(only={"total"}).problems
    assert problem.found == "input numbers was made again with other content"


def test_upstream_makes_only_what_is_needed(make: Any, store: ArtifactStore) -> None:
    first = make()
    fill(first)
    store.remove("numbers", first.node("numbers").key)
    cached = make(only={"total"}, upstream=True)
    assert states(cached) == {"total": ("cached", "made and verified")}
    store.remove("total", first.node("total").key)
    # total reads the numbers itself; scale:a and scale:b exist and would not need them.
    assert [(n.id, n.state) for n in make(only={"total"}, upstream=True).nodes] == [
        ("numbers", "to run"),
        ("scale:a", "cached"),
        ("scale:b", "cached"),
        ("total", "to run"),
    ]
    store.remove("scaled", first.node("scale:a").key)
    assert [n.id for n in make(only={"scale:b"}, upstream=True).nodes] == ["scale:b"]
    assert [n.id for n in make(only={"scale:a"}, upstream=True).nodes] == ["numbers", "scale:a"]


def test_what_was_made_from_something_else_is_named_beside_what_is_needed(
    flow: Flow, registry: Registry, store: ArtifactStore, make: Any, tmp_path: Path
) -> None:
    data = tmp_path / "data.txt"
    data.write_text("one")
    config = FakeConfig(source=SourceParams(data=data))
    first = make(config)
    fill(first)
    data.write_text("two")
    changed = plan(
        flow, config, store, registry=registry, only={"total"}, locate=lambda path: Location(source="c.yaml", line=3)
    )
    problems = {problem.path: problem for problem in changed.problems}
    old, new = first.node("numbers"), make(config).node("numbers")
    assert problems["source"].found == f"numbers/{old.key[:12]} (parameters changed: content of data since)"
    assert problems["source"].expected == f"numbers/{new.key[:12]}"
    assert str(problems["source"].location) == "c.yaml:3"
    assert "which has not been made from what is there now" in problems["source"].message
