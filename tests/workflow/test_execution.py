"""Stage processes: kills, two at once, what they tell, and that none is left over."""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from specflow.workflow.console import PlainConsole
from specflow.workflow.events import Sender, receive
from specflow.workflow.execution import Execution
from specflow.workflow.flow import Flow
from specflow.workflow.planning import PlannedNode, plan
from specflow.workflow.registry import Registry
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import FakeConfig, SourceParams

PIECES = 8


@pytest.fixture
def side_log(tmp_path: Path) -> Path:
    return tmp_path / "side.log"


def planned_source(flow: Flow, registry: Registry, store: ArtifactStore, params: SourceParams) -> PlannedNode:
    return plan(flow, FakeConfig(source=params), store, registry=registry).node("numbers")


def execution(store: ArtifactStore, registry: Registry, name: str = "run") -> tuple[Execution, io.StringIO]:
    text = io.StringIO()
    return Execution(store, registry, PlainConsole(text, line_seconds=0.0), store.logs / name), text


def workers(store: ArtifactStore) -> list[psutil.Process]:
    """Processes whose command line names the store, the oldest first."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(store.root) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda process: process.pid)


def until(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while callable(condition) and not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.slow
def test_killed_again_and_again_it_completes_and_repeats_at_most_the_open_piece(
    flow: Flow, registry: Registry, store: ArtifactStore, side_log: Path
) -> None:
    chance = random.Random(3)
    params = SourceParams(count=PIECES, seconds=0.03, side_log=side_log)
    for attempt, pieces in enumerate((1, 3, 6)):
        node = planned_source(flow, registry, store, params)
        run, text = execution(store, registry, str(attempt))
        results = []
        thread = threading.Thread(target=lambda r=run, n=node, out=results: out.append(r.run(n)))  # type: ignore[misc]
        thread.start()
        until(lambda wanted=pieces: len(lines(side_log)) >= wanted)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.03))
        for process in workers(store):
            process.kill()
        thread.join()
        assert results[0].status == "failed"
        assert "signal 9" in results[0].message
        assert f"log: {results[0].log}" in text.getvalue()
        assert store.list() == []
    run, _ = execution(store, registry)
    result = run.run(planned_source(flow, registry, store, params))
    assert result.status == "made"
    assert set(lines(side_log)) == {str(i) for i in range(PIECES)}
    # A piece is noted before its rename, so each kill can repeat at most one.
    assert len(lines(side_log)) <= PIECES + 3
    made = store.find("numbers", result.key)
    assert made is not None
    assert store.verify(made) == []
    assert not list(store.work.iterdir())


def test_two_processes_make_one_artifact(flow: Flow, registry: Registry, store: ArtifactStore, side_log: Path) -> None:
    node = planned_source(flow, registry, store, SourceParams(count=4, seconds=0.2, side_log=side_log))
    runs = [execution(store, registry, name) for name in ("one", "two")]
    results = []
    threads = [threading.Thread(target=lambda r=run: results.append(r.run(node))) for run, _ in runs]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.status for r in results) == ["cached", "made"]
    assert len(lines(side_log)) == 4
    assert "waiting for it" in runs[0][1].getvalue() + runs[1][1].getvalue()


def test_damage_found_by_the_stage_process_is_put_aside(flow: Flow, registry: Registry, store: ArtifactStore) -> None:
    node = planned_source(flow, registry, store, SourceParams())
    run, text = execution(store, registry)
    result = run.run(node)
    assert result.metrics == {"count": 3}
    assert result.path is not None
    assert re.search(r"^  pieces: \d/3 rows, .* rows/s, .* left", text.getvalue(), re.MULTILINE)
    assert "numbers: wrote 3 pieces" in text.getvalue()
    (result.path / "1.txt").write_text("7")
    assert run.run(node).status == "made"
    assert (result.path / "1.txt").read_text() == "1"
    assert "1.txt sha256 differs" in text.getvalue()
    assert len(list(store.damaged.iterdir())) == 1


@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_no_process_outlives_its_parent(
    number: str, registry: Registry, store: ArtifactStore, tmp_path: Path, side_log: Path
) -> None:
    import signal

    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), str(store.root), str(side_log)], stderr=subprocess.DEVNULL)
    until(lambda: lines(side_log))
    group = [p for p in workers(store) if "specflow.workflow.worker" in p.cmdline()]
    everyone = [*group, *(child for p in group for child in p.children(recursive=True))]
    assert len(everyone) == 2, "the stage and the child it started"
    parent.send_signal(getattr(signal, number))
    parent.wait(20)
    gone, alive = psutil.wait_procs(everyone, timeout=10)
    assert alive == []
    assert len(gone) == 2


PARENT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it for its children
import sys
from pathlib import Path
from specflow.config.document import parse_document
from specflow.workflow.code_version import CodeVersions
from specflow.workflow.console import PlainConsole
from specflow.workflow.events import Sender, receive
from specflow.workflow.execution import Execution
from specflow.workflow.flow import parse_flow
from specflow.workflow.planning import plan
from specflow.workflow.registry import Registry
from specflow.workflow.runner import _terminated_as_interrupt
from specflow.workflow.store import ArtifactStore
from tests.workflow.conftest import FLOW, ROOT
from tests.workflow.fakes.params import FakeConfig, SourceParams

modules = {n: f"tests.workflow.fakes.{n}" for n in ("source", "scale", "total")}
registry = Registry(modules, CodeVersions({"tests": ROOT / "tests"}))
flow = parse_flow(parse_document(FLOW, source="f"), registry=registry)
store = ArtifactStore(Path(sys.argv[1]))
params = SourceParams(count=1000, seconds=0.1, side_log=Path(sys.argv[2]), child=True)
node = plan(flow, FakeConfig(source=params), store, registry=registry).node("numbers")
with _terminated_as_interrupt():
    Execution(store, registry, PlainConsole(sys.stdout), store.logs / "run").run(node)
"""


def test_what_was_made_from_other_content_is_made_again_and_only_that(
    flow: Flow, registry: Registry, store: ArtifactStore
) -> None:
    def run_all(name: str) -> tuple[dict[str, str], str]:
        run, text = execution(store, registry, name)
        return {node.id: run.run(node).status for node in planned.nodes}, text.getvalue()

    planned = plan(flow, FakeConfig(), store, registry=registry)
    assert set(run_all("first")[0].values()) == {"made"}
    numbers = planned.node("numbers")
    record = store.record("scaled", planned.node("scale:a").key)
    source = store.record("numbers", numbers.key)
    assert record is not None
    assert source is not None
    assert record.input_digests == {f"numbers/{numbers.key}": source.content_digest}

    # Made again with the same bytes: what was planned as cached stays so.
    store.remove("numbers", numbers.key)
    planned = plan(flow, FakeConfig(), store, registry=registry)
    assert [node.id for node in planned.to_run] == ["numbers"]
    assert run_all("same")[0] == {"numbers": "made", "scale:a": "cached", "scale:b": "cached", "total": "cached"}

    # Finished pieces of another number, as another machine would compute them, make other content under the key.
    store.remove("numbers", numbers.key)
    scratch = store.attempt_path("numbers", numbers.key) / "scratch"
    scratch.mkdir(parents=True)
    (scratch / "0.txt").write_text("10")
    planned = plan(flow, FakeConfig(), store, registry=registry)
    assert [node.id for node in planned.to_run] == ["numbers"]
    statuses, text = run_all("other")
    assert set(statuses.values()) == {"made"}
    assert "input numbers was made again with other content; the artifact was moved to" in text
    total = store.find("total", planned.node("total").key)
    assert total is not None
    assert total.metrics == {"total": (10 + 1 + 2) * 12}
    planned = plan(flow, FakeConfig(), store, registry=registry)
    assert {node.state for node in planned.nodes} == {"cached"}


def test_events_written_just_before_the_end_are_received() -> None:
    reader, writer = os.pipe()
    sent = [{"event": "log", "message": "x" * 100, "number": i} for i in range(300)]

    def dies_after_writing() -> bool:
        """The sender writes its last words and ends while it is asked about; something else holds the pipe open."""
        if sent_now := sent[len(done) :]:
            done.extend(sent_now)
            for event in sent_now:
                Sender(writer).send(**event)
        return False

    done: list[dict[str, object]] = []
    assert list(receive(reader, alive=dies_after_writing, poll_seconds=0.01)) == sent
    os.close(writer)
    os.close(reader)
