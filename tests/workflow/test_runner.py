"""Whole runs through Prefect with fake stages, in one process after another."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specflow.config.errors import InputErrors
from specflow.workflow.console import PlainConsole
from specflow.workflow.flow import Flow
from specflow.workflow.registry import Registry
from specflow.workflow.runner import run
from specflow.workflow.server import Server, prefect_server
from specflow.workflow.server_database import copy_template, keep_template, template
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import FakeConfig, ScaleParams, SourceParams

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the runs that do not test their own."""
    home = tmp_path_factory.mktemp("prefect")
    with prefect_server(home, log=home / "server.log") as started:
        started.wait_until_ready()
        yield started


@pytest.fixture
def database(server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_API_URL", server.api_url)
    return server.log.parent / "prefect.db"


def test_run_makes_everything_then_finds_it_cached_then_repairs_damage(
    flow: Flow, registry: Registry, store: ArtifactStore, database: Path
) -> None:
    first_text, second_text = io.StringIO(), io.StringIO()
    first = run(flow, FakeConfig(), store, registry=registry, console=PlainConsole(first_text))
    assert first.exit_code == 0, first_text.getvalue()
    assert [(n.id, n.status) for n in first.nodes] == [
        ("numbers", "made"),
        ("scale:a", "made"),
        ("scale:b", "made"),
        ("total", "made"),
    ]
    assert first.node("total").metrics == {"total": (0 + 1 + 2) * 12}
    assert first.node("scale:a").metrics["item"] == "a"
    assert "\x1b" not in first_text.getvalue()
    damaged = store.list("scaled")[0].path / "sub" / "sum.txt"
    damaged.write_text("999"[: damaged.stat().st_size])
    second = run(flow, FakeConfig(), store, registry=registry, console=PlainConsole(second_text))
    assert second.exit_code == 0
    assert [n.status for n in second.nodes].count("cached") == 3
    assert [n.id for n in second.nodes if n.status == "made"] == ["scale:a"]
    assert "sum.txt sha256 differs" in second_text.getvalue()
    assert len(list(store.damaged.iterdir())) == 1
    assert [n.key for n in first.nodes] == [n.key for n in second.nodes]
    assert json.loads(json.dumps(second.as_json()))["exit_code"] == 0
    states = _states_in_prefect(database)
    assert states[first.name] == {
        "numbers": "Completed",
        "scale:a": "Completed",
        "scale:b": "Completed",
        "total": "Completed",
    }
    assert states[second.name] == {"numbers": "Cached", "scale:a": "Completed", "scale:b": "Cached", "total": "Cached"}
    artifact = _artifacts_in_prefect(database)["specflow-total"]
    assert first.node("total").key in artifact
    assert "| total | 36 |" in artifact
    assert not (store.root / ".prefect" / "prefect.db").exists(), "a server of its own was started"


def test_failed_stage_fails_the_run_and_names_its_log(
    flow: Flow, registry: Registry, store: ArtifactStore, database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = FakeConfig(scales={"a": ScaleParams(fail=True), "b": ScaleParams()})
    text = io.StringIO()
    result = run(flow, config, store, registry=registry, console=PlainConsole(text))
    assert result.exit_code == 1
    printed = capfd.readouterr()
    assert "Task run" not in printed.out + printed.err, "Prefect repeats what our console says"
    assert [(n.id, n.status) for n in result.nodes] == [
        ("numbers", "made"),
        ("scale:a", "failed"),
        ("scale:b", "made"),
        ("total", "not run"),
    ]
    log = result.node("scale:a").log
    assert log is not None
    assert str(log) in text.getvalue()
    assert "the factor was told to fail" in log.read_text()
    assert _states_in_prefect(database)[result.name]["total"] == "NotRun"


def _states_in_prefect(database: Path) -> dict[str, dict[str, str]]:
    """Task runs by flow run, as the server holds them."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "select f.name, t.name, t.state_name from task_run t join flow_run f on f.id = t.flow_run_id"
        ).fetchall()
    states: dict[str, dict[str, str]] = {}
    for run_name, node, state in rows:
        states.setdefault(run_name, {})[node] = state
    return states


def _artifacts_in_prefect(database: Path) -> dict[str, str]:
    with sqlite3.connect(database) as connection:
        return dict(connection.execute("select key, data from artifact order by created").fetchall())


def test_ctrl_c_leaves_no_process_and_exits_with_130(store: ArtifactStore, tmp_path: Path) -> None:
    script, side_log = tmp_path / "run.py", tmp_path / "side.log"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(store.root), str(side_log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while not side_log.exists():
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    commands = [" ".join(child.cmdline()) for child in children]
    assert sum("specflow.workflow.worker" in command for command in commands) == 1
    assert sum("specflow.workflow.server" in command for command in commands) == 1
    assert len(children) == 3, commands
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted; finished pieces are kept" in output
    assert "Traceback" not in output
    assert "'interrupted', 'not run', 'not run', 'not run'" in output
    assert "torch loaded: False" in output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_a_new_store_has_the_database_that_the_first_server_migrated(server: Server, tmp_path: Path) -> None:
    assert not copy_template(server.log.parent, template())
    assert copy_template(tmp_path, tmp_path / "missing.db")
    assert not copy_template(tmp_path, template())
    assert not list(tmp_path.glob("*.partial"))
    queries = ("select sql from sqlite_master order by name", "select * from alembic_version")
    with (
        sqlite3.connect(tmp_path / "prefect.db") as copy,
        sqlite3.connect(server.log.parent / "prefect.db") as migrated,
    ):
        for query in queries:
            assert copy.execute(query).fetchall() == migrated.execute(query).fetchall() != []
        assert copy.execute("select count(*) from flow_run").fetchall() == [(0,)]
    keep_template(tmp_path, tmp_path / "prefect.db" / "below-a-file.db")  # not permitted: no error


def test_server_dies_with_a_killed_run(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from specflow.workflow.server import prefect_server\n"
        f"with prefect_server(Path({str(tmp_path / 'home')!r}), log=Path({str(tmp_path / 'log')!r})) as server:\n"
        "    print(server.process.pid, flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    psutil.wait_procs([server], timeout=20)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_nothing_starts_when_something_is_wrong(flow: Flow, registry: Registry, store: ArtifactStore) -> None:
    with pytest.raises(InputErrors, match="at most 1000"):
        run(flow, FakeConfig(source=SourceParams(count=1001)), store, registry=registry)
    with pytest.raises(InputErrors, match="has not been made"):
        run(flow, FakeConfig(), store, registry=registry, only={"total"})
    assert not store.root.exists()


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it for its children
import sys
from pathlib import Path
from specflow.config.document import parse_document
from specflow.workflow.code_version import CodeVersions
from specflow.workflow.flow import parse_flow
from specflow.workflow.registry import Registry
from specflow.workflow.runner import run
from specflow.workflow.server import Server, prefect_server
from specflow.workflow.store import ArtifactStore
from tests.workflow.conftest import FLOW, ROOT
from tests.workflow.fakes.params import FakeConfig, SourceParams

modules = {n: f"tests.workflow.fakes.{n}" for n in ("source", "scale", "total")}
registry = Registry(modules, CodeVersions({"tests": ROOT / "tests"}))
flow = parse_flow(parse_document(FLOW, source="f"), registry=registry)
params = SourceParams(count=1000, seconds=0.1, side_log=Path(sys.argv[2]), child=True)
result = run(flow, FakeConfig(source=params), ArtifactStore(Path(sys.argv[1])), registry=registry)
print([node.status for node in result.nodes])
print("torch loaded:", "torch" in sys.modules)
sys.exit(result.exit_code)
"""
