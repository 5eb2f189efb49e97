"""Stage processes forked from one that has the libraries imported: the same as new ones, and none is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specflow.workflow.flow import Flow
from specflow.workflow.launching import Launcher, NewProcess, launcher
from specflow.workflow.planning import plan
from specflow.workflow.registry import STAGES, Registry
from specflow.workflow.store import ArtifactStore
from tests.workflow.conftest import ROOT
from tests.workflow.fakes.params import FakeConfig, SourceParams
from tests.workflow.test_execution import execution, lines, planned_source, until, workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking is used on Linux only")
PRELOADED = ("colorsys",)
"""A module that nothing else imports."""


@pytest.fixture
def forking(store: ArtifactStore) -> Iterator[Launcher]:
    with launcher(store.logs, PRELOADED) as found:
        yield found


def test_a_forked_stage_makes_the_same_as_a_new_process(
    flow: Flow, registry: Registry, tmp_path: Path, forking: Launcher
) -> None:
    digests = []
    for name, started_by in (("new", Launcher()), ("forked", forking)):
        store = ArtifactStore(tmp_path / name)
        run, text = execution(store, registry)
        run.launcher = started_by
        results = [run.run(node) for node in plan(flow, FakeConfig(), store, registry=registry).nodes]
        assert [result.status for result in results] == ["made"] * 4, text.getvalue()
        assert "wrote 3 pieces" in text.getvalue()
        assert results[0].log is not None
        assert "wrote 3 pieces" in results[0].log.read_text()
        digests.append([(a.kind, a.key, a.content_digest) for a in store.records()])
    assert sorted(digests[0]) == sorted(digests[1])
    assert forking.obstacle == ""


def test_a_forked_process_is_a_group_with_the_modules_imported(store: ArtifactStore, forking: Launcher) -> None:
    """A worker without a file to work on fails; the log says in which process."""
    reader, writer = os.pipe()
    process = forking.start(Path("missing.json"), writer, log=store.logs / "stage.log")
    os.close(writer)
    assert not isinstance(process, NewProcess)
    assert process.wait() == 1
    assert process.poll() == 1
    assert b"missing.json" in os.read(reader, 1 << 16)
    process.end()
    process.end()
    os.close(reader)
    assert "FileNotFoundError" in (store.logs / "stage.log").read_text()


@pytest.mark.parametrize("victim", ["stage", "server"])
def test_a_killed_process_fails_its_stage_and_the_next_is_started(
    flow: Flow, registry: Registry, store: ArtifactStore, forking: Launcher, tmp_path: Path, victim: str
) -> None:
    import threading

    side_log = tmp_path / "side.log"
    run, _ = execution(store, registry)
    run.launcher = forking
    slow = SourceParams(count=8, seconds=0.05, side_log=side_log, child=True)
    results = []
    thread = threading.Thread(target=lambda: results.append(run.run(planned_source(flow, registry, store, slow))))
    thread.start()
    until(lambda: lines(side_log))
    server, stage = workers(store)
    everyone = [server, stage, *stage.children(recursive=True)]
    assert len(everyone) == 3
    assert os.getsid(stage.pid) == os.getpgid(stage.pid) == stage.pid
    {"stage": stage, "server": server}[victim].kill()
    thread.join()
    assert results[0].status == "failed"
    assert "signal 9" in results[0].message
    ended = everyone[1:] if victim == "stage" else everyone
    assert psutil.wait_procs(ended, timeout=10)[1] == []
    assert run.run(planned_source(flow, registry, store, SourceParams(count=8))).status == "made"
    assert forking.obstacle == ("" if victim == "stage" else "the fork server ended")


def test_where_a_thread_runs_nothing_is_forked(flow: Flow, registry: Registry, store: ArtifactStore) -> None:
    with launcher(store.logs, ("tests.workflow.fakes.starts_a_thread",)) as found:
        run, text = execution(store, registry)
        run.launcher = found
        assert run.run(planned_source(flow, registry, store, SourceParams())).status == "made", text.getvalue()
        assert found.obstacle == "2 threads run after the imports, expected 1"


def test_what_the_stages_import_leaves_no_thread(store: ArtifactStore) -> None:
    """Or the stages of a real run would all be new processes, which import it again."""
    with launcher(store.logs, STAGES.preloaded) as found:
        reader, writer = os.pipe()
        process = found.start(Path("missing.json"), writer, log=store.logs / "stage.log")
        os.close(writer)
        process.wait()
        process.end()
        os.close(reader)
    assert found.obstacle == ""
    assert (store.logs / "fork-server.log").read_text() == ""


@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT", "SIGTERM"])
@pytest.mark.parametrize("moment", ["stage", "import"])
def test_no_process_outlives_its_parent(number: str, moment: str, store: ArtifactStore, tmp_path: Path) -> None:
    script, side_log = tmp_path / "parent.py", tmp_path / "side.log"
    script.write_text(PARENT)
    module = "colorsys" if moment == "stage" else "tests.workflow.fakes.slow_import"
    command = [sys.executable, str(script), str(store.root), str(side_log), module]
    with (tmp_path / "output").open("wb") as output:
        parent = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path)
    sign = side_log if moment == "stage" else tmp_path / "importing"
    until(lambda: sign.exists() or parent.poll() is not None)
    everyone = psutil.Process(parent.pid).children(recursive=True)
    expected = 3 if moment == "stage" else 1
    assert len(everyone) == expected, "the server, the stage and the child it started"
    parent.send_signal(getattr(signal, number))
    parent.wait(20)
    gone, alive = psutil.wait_procs(everyone, timeout=10)
    assert alive == []
    assert len(gone) == expected


def test_ending_takes_what_the_stage_left_behind_and_a_stage_that_does_not_listen(
    flow: Flow, registry: Registry, store: ArtifactStore, forking: Launcher, tmp_path: Path
) -> None:
    side_log = tmp_path / "side.log"
    run, _ = execution(store, registry)
    run.launcher = forking
    node = planned_source(flow, registry, store, SourceParams(count=2, side_log=side_log, child=True))
    assert run.run(node).status == "made"
    (server,) = workers(store)
    until(lambda: not server.children(recursive=True), 10.0)
    spec = store.logs / "again.json"
    slow = planned_source(flow, registry, store, SourceParams(count=3, seconds=30.0, child=True, side_log=side_log))
    spec.write_text(run._work(slow).model_dump_json())
    reader, writer = os.pipe()
    process = forking.start(spec, writer, log=store.logs / "again.log")
    os.close(writer)
    until(lambda: len(server.children(recursive=True)) == 2, 20.0)
    stopped = server.children()[0]
    stopped.suspend()  # a stopped process takes no SIGTERM
    started = time.monotonic()
    process.end()
    assert time.monotonic() - started < 10
    assert process.poll() in (-signal.SIGKILL, -signal.SIGTERM)
    assert server.children(recursive=True) == []
    os.close(reader)


PARENT = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it for its children
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}]
from specflow.config.document import parse_document
from specflow.workflow.code_version import CodeVersions
from specflow.workflow.console import PlainConsole
from specflow.workflow.execution import Execution
from specflow.workflow.flow import parse_flow
from specflow.workflow.launching import launcher
from specflow.workflow.planning import plan
from specflow.workflow.registry import Registry
from specflow.workflow.runner import _terminated_as_interrupt
from specflow.workflow.store import ArtifactStore
from tests.workflow.conftest import FLOW, ROOT
from tests.workflow.fakes.params import FakeConfig, SourceParams

modules = {{n: f"tests.workflow.fakes.{{n}}" for n in ("source", "scale", "total")}}
registry = Registry(modules, CodeVersions({{"tests": ROOT / "tests"}}))
flow = parse_flow(parse_document(FLOW, source="f"), registry=registry)
store = ArtifactStore(Path(sys.argv[1]))
params = SourceParams(count=1000, seconds=0.1, side_log=Path(sys.argv[2]), child=True)
node = plan(flow, FakeConfig(source=params), store, registry=registry).node("numbers")
with _terminated_as_interrupt(), launcher(store.logs, sys.argv[3:]) as stages:
    Execution(store, registry, PlainConsole(sys.stdout), store.logs / "run", stages).run(node)
"""
