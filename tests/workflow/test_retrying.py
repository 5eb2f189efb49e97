"""A stage that is killed is tried again and goes on where it was; one that fails with a message is not."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specflow.config.operations import OperationsParams
from specflow.workflow.console import PlainConsole
from specflow.workflow.flow import Flow
from specflow.workflow.registry import Registry
from specflow.workflow.runner import run
from specflow.workflow.server import prefect_server
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import FakeConfig, ScaleParams, SourceParams

pytestmark = pytest.mark.slow


class Operated(FakeConfig):
    operations: OperationsParams = OperationsParams(retries=2, retry_delay=0.1, device="shared")


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("prefect")
    with prefect_server(home, log=home / "server.log") as started:
        started.wait_until_ready()
        yield started.api_url


@pytest.fixture(autouse=True)
def _known(api_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", api_url)


def kill_once(store: ArtifactStore, side_log: Path, killed: list[int]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (side_log.exists() and len(side_log.read_text().split()) >= 2):
        time.sleep(0.05)
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "specflow.workflow.worker" in words and str(store.root) in words:
            killed.append(process.pid)
            process.kill()


def test_a_killed_stage_is_tried_again_and_continues(
    flow: Flow, registry: Registry, store: ArtifactStore, tmp_path: Path
) -> None:
    side_log, killed = tmp_path / "side.log", list[int]()
    thread = threading.Thread(target=kill_once, args=(store, side_log, killed))
    thread.start()
    text = io.StringIO()
    config = Operated(source=SourceParams(seconds=0.4, count=8, side_log=side_log))
    result = run(flow, config, store, registry=registry, console=PlainConsole(text))
    thread.join()
    assert len(killed) == 1
    assert result.exit_code == 0, text.getvalue()
    assert sorted(set(side_log.read_text().split())) == [str(number) for number in range(8)]
    assert len(side_log.read_text().split()) <= 9  # at most the piece that was being made is made twice
    assert "was killed (signal 9)" in text.getvalue()


def test_a_message_to_the_user_is_not_tried_again(flow: Flow, registry: Registry, store: ArtifactStore) -> None:
    text = io.StringIO()
    config = Operated(scales={"a": ScaleParams(fail=True)})
    result = run(flow, config, store, registry=registry, console=PlainConsole(text))
    assert [(node.id, node.status) for node in result.nodes] == [
        ("numbers", "made"),
        ("scale:a", "failed"),
        ("total", "not run"),
    ]
    assert text.getvalue().count("the factor was told to fail") == 1
