"""What an update shows, without a server; what the supervisor does when a process is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from specflow.workflow.deployments import RUN, Deployment, cron_problem, difference
from specflow.workflow.local_server import STATE, ServerState, read_state, start, stop
from specflow.workflow.orphans import end_group
from specflow.workflow.server import ServerError, free_port, port_in_use
from specflow.workflow.supervisor import Child
from tests.cli.support import specflow

WANTED = Deployment(
    flow="full-pipeline",
    name="smoke",
    entrypoint=RUN,
    parameters={"flow": "/f.yaml", "config": "/c.yaml", "overrides": ["bench.repeats=2"]},
    schedule={"interval": 60.0},
    pool="specflow",
    directory=Path("/somewhere"),
)


def test_an_update_shows_every_difference_and_only_those() -> None:
    known = WANTED.content()
    assert difference(WANTED, known).what == "unchanged"
    created = difference(WANTED, None)
    assert created.what == "create"
    assert "parameters.config None -> /c.yaml" in created.lines
    other = replace(WANTED, schedule={"interval": 90.0}, pool="gpu")
    change = difference(other, known)
    assert (change.name, change.what) == ("full-pipeline/smoke", "update")
    assert sorted(change.lines) == ["pool specflow -> gpu", "schedule.interval 60.0 -> 90.0"]


def test_a_cron_schedule_is_checked_before_it_is_sent() -> None:
    assert cron_problem("0 3 * * *", "Europe/Berlin") == ""
    assert cron_problem("61 3 * * *", "UTC")
    assert cron_problem("0 3 * * *", "Mars/Olympus")


def test_a_killed_child_is_started_again_and_later_each_time(tmp_path: Path) -> None:
    child = Child("sleeper", [sys.executable, "-c", "import time; time.sleep(300)"])
    environment = dict(os.environ)
    try:
        assert child.keep_running(tmp_path, environment)
        assert child.process is not None
        first = child.process.pid
        assert not child.keep_running(tmp_path, environment)
        os.kill(first, signal.SIGKILL)
        child.process.wait()
        assert not child.keep_running(tmp_path, environment)  # it ended at once: not before a second is over
        assert child.next_start - time.monotonic() == pytest.approx(1.0, abs=0.5)
        child.next_start = 0.0
        assert child.keep_running(tmp_path, environment)
        assert child.process is not None
        assert child.process.pid != first
        assert not psutil.pid_exists(first)
    finally:
        if child.process:
            end_group(child.process)


def test_a_state_of_another_process_is_none(tmp_path: Path) -> None:
    own = ServerState(pid=os.getpid(), created=psutil.Process().create_time(), port=1)
    (tmp_path / STATE).write_text(own.model_dump_json())
    assert read_state(tmp_path) == own
    (tmp_path / STATE).write_text(own.model_copy(update={"created": own.created - 60}).model_dump_json())
    assert read_state(tmp_path) is None
    assert not stop(tmp_path)  # and is not ended


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    assert not port_in_use(free_port())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} is in use"):
            start(tmp_path / "home", port=port)


def test_deploy_says_what_is_wrong_before_it_asks_a_server(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path)]
    config = ["--config", "configs/smoke.yaml"]
    found = specflow("deploy", "full-pipeline", *config, "--set", "bench.nothing=1", *home)
    assert found.exit_code == 2, found.output
    found = specflow("deploy", "full-pipeline", *config, "--cron", "0 3 * * *", "--interval", "5", *home)
    assert found.exit_code == 2, found.output
    found = specflow("deploy", "full-pipeline", *config, "--cron", "never", *home)
    assert found.exit_code == 2, found.output
    found = specflow("deploy", "full-pipeline", *config, *home)
    assert found.exit_code == 1
    assert "specflow server start" in " ".join(found.output.split())
    assert specflow("server", "status", *home).exit_code == 1
    assert specflow("undeploy", "full-pipeline", *home).exit_code == 2
