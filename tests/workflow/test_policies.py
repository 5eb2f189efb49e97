"""Which failures are tried again, how long a try may take, which stages queue for a device."""

from __future__ import annotations

import errno
import io
import os
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from specflow.config.operations import OperationsParams
from specflow.workflow import policies
from specflow.workflow.console import PlainConsole
from specflow.workflow.execution import Execution
from specflow.workflow.flow import Flow
from specflow.workflow.graph import Node
from specflow.workflow.notifying import message, notify
from specflow.workflow.planning import plan
from specflow.workflow.registry import STAGE_NAMES, Registry
from specflow.workflow.results import NodeResult
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import FakeConfig, SourceParams


def node(stage: str, item: str | None = None) -> Node:
    name = f"{stage}:{item}" if item else stage
    return Node(
        id=name, entry=stage, stage=stage, kind=stage, item=item, params=SourceParams(), section=stage, needs=()
    )


def test_findings_are_never_tried_again_and_the_delay_doubles() -> None:
    operations = OperationsParams(retries=3, retry_delay=5)
    tried = {stage for stage in STAGE_NAMES if policies.retries(node(stage), operations)}
    assert tried == set(STAGE_NAMES) - {"verify", "parity", "bench", "compare", "gate"}
    assert policies.retries(node("train"), operations) == 3
    assert policies.delays(operations) == [5.0, 10.0, 20.0]


def test_the_limit_of_a_node_comes_before_that_of_its_stage() -> None:
    operations = OperationsParams(time_limits={"train": 60, "train:a": 5})
    assert policies.time_limit(node("train", "a"), operations) == 5
    assert policies.time_limit(node("train", "b"), operations) == 60
    assert policies.time_limit(node("bench"), operations) is None


def test_stages_that_run_a_model_queue_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    named = OperationsParams(device="left")
    assert policies.device(node("train"), named) == "specflow-left"
    assert policies.device(node("tokenize"), named) is None
    assert policies.device(node("train"), OperationsParams(device=None)) is None
    monkeypatch.setattr(policies, "ACCELERATORS", (os.devnull,))
    assert policies.device(node("train"), OperationsParams()) == f"specflow-{socket.gethostname()}"
    monkeypatch.setattr(policies, "ACCELERATORS", ("/nowhere",))
    assert policies.device(node("train"), OperationsParams()) is None


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (httpx.ConnectError("refused"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (MemoryError(), True),
        (OSError(errno.EIO, "io"), True),
        (OSError(errno.ENOSPC, "full"), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (ValueError("wrong"), False),
        (AssertionError(), False),
    ],
)
def test_only_what_may_pass_is_an_accident(error: Exception, passing: bool) -> None:
    assert policies.by_accident(error) is passing


def run_source(flow: Flow, registry: Registry, store: ArtifactStore, operations: OperationsParams) -> NodeResult:
    planned = plan(flow, FakeConfig(source=SourceParams(seconds=0.2, count=100)), store, registry=registry)
    console = PlainConsole(io.StringIO())
    return Execution(store, registry, console, store.logs / "run", operations=operations).run(planned.node("numbers"))


def test_a_try_that_takes_too_long_is_ended_keeps_its_pieces_and_is_no_accident(
    flow: Flow, registry: Registry, store: ArtifactStore
) -> None:
    result = run_source(flow, registry, store, OperationsParams(time_limits={"source": 3.0}))
    assert result.status == "failed"
    assert not result.accident
    assert "ended after 3 s, its limit in operations.time_limits" in result.message
    assert list(store.pairs()) == []
    (scratch,) = store.work.glob("numbers-*/scratch")
    assert list(scratch.glob("*.txt"))


def test_what_is_told_names_what_failed_and_a_block_that_is_missing_fails_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = NodeResult(id="target", stage="target", kind="target", key="k", status="cached")
    bad = replace(good, id="train:a", status="failed", message="no data")
    assert message([good, bad, bad]) == "1 cached, 2 failed\ntrain:a: failed: no data\ntrain:a: failed: no data"
    monkeypatch.setattr("prefect.blocks.core.Block.load", lambda name: 1 / 0)
    notify(OperationsParams(notify="slack-webhook/team"), "run", [good])
    assert caplog.text == ""
    notify(OperationsParams(notify="slack-webhook/team"), "run", [bad])
    assert "block slack-webhook/team was not told: ZeroDivisionError" in caplog.text


def test_a_limit_of_what_does_not_exist_is_a_problem(flow: Flow, registry: Registry, store: ArtifactStore) -> None:
    class Operated(FakeConfig):
        operations: OperationsParams = OperationsParams(time_limits={"sorce": 1, "source": 1, "scale:none": 1})

    planned = plan(flow, Operated(), store, registry=registry)
    assert [(problem.path, problem.hint) for problem in planned.problems] == [
        ("operations.time_limits.sorce", planned.problems[0].hint)
    ]
    assert "source" in planned.problems[0].hint
