"""``specflow run``: plan, then make what is missing, as one Prefect flow run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from types import FrameType

from pydantic import BaseModel

from specflow.config.errors import InputErrors
from specflow.workflow.console import Console, closing_console, make_console
from specflow.workflow.execution import Execution, file_name
from specflow.workflow.flow import Flow
from specflow.workflow.graph import Locate, unlocated
from specflow.workflow.launching import launcher
from specflow.workflow.planning import Plan, PlannedNode, plan
from specflow.workflow.registry import STAGES, Registry
from specflow.workflow.results import NodeResult, RunResult
from specflow.workflow.store import ArtifactStore


def run(
    flow: Flow,
    config: BaseModel,
    store: ArtifactStore,
    *,
    registry: Registry = STAGES,
    locate: Locate = unlocated,
    only: Collection[str] | None = None,
    upstream: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Run a flow, or the nodes named in ``only``; raises ``InputErrors`` before anything runs.

    A failed stage, and Ctrl-C, are in the result and its exit code.
    """
    planned = plan(flow, config, store, registry=registry, locate=locate, only=only, upstream=upstream)
    if planned.problems:
        raise InputErrors(planned.problems)
    return run_plan(planned, registry=registry, console=console)


def run_plan(
    planned: Plan, *, registry: Registry = STAGES, console: Console | None = None, in_flow_run: bool = False
) -> RunResult:
    """Run a plan made with ``verify=True``; ``in_flow_run``: as the Prefect flow run that this is called in."""
    name = run_name(planned, datetime.now().astimezone())
    started = time.monotonic()
    logs = planned.store.logs / name
    # One stage alone would wait for imports that it may not need.
    preloaded = registry.preloaded if len(planned.to_run) > 1 else ()
    with (
        closing_console(console or make_console()) as output,
        nullcontext() if in_flow_run else _terminated_as_interrupt(),
        launcher(logs, preloaded) as stages,
    ):
        recorder = _Recorder(Execution(planned.store, registry, output, logs, stages, planned.operations))
        interrupted, problem = False, ""
        try:
            if in_flow_run:
                _run_in_flow_run(planned, name, recorder)
            else:
                _run_with_prefect(planned, name, recorder)
        except KeyboardInterrupt:
            interrupted = True
            output.close()
            output.message("interrupted; finished pieces are kept, the same command continues")
        except _server_error() as error:
            problem = str(error)
            output.message(f"error: {problem}")
    return RunResult(
        flow=planned.flow,
        name=name,
        nodes=tuple(recorder.complete(planned, interrupted=interrupted)),
        seconds=time.monotonic() - started,
        interrupted=interrupted,
        problem=problem,
    )


def run_name(planned: Plan, when: datetime) -> str:
    """Name of the flow run: flow, configuration and time. Also of the directory of logs, so unique on one store."""
    stamp = f"{when:%Y%m%d-%H%M%S-%f}"[:-3]
    return "-".join(part for part in (planned.flow, file_name(planned.configuration)[:64], stamp) if part)


class _Recorder:
    """Keeps results also when the run is broken off."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._results: dict[str, NodeResult] = {}
        self._running: str | None = None

    @property
    def execution(self) -> Execution:
        return self._execution

    def execute(self, planned: PlannedNode) -> NodeResult:
        self._running = planned.id
        result = self._results[planned.id] = self._execution.run(planned)
        self._running = None
        return result

    def skip(self, planned: PlannedNode, failed: list[str]) -> NodeResult:
        result = self._results[planned.id] = self._execution.not_run(planned, failed)
        return result

    def complete(self, planned: Plan, *, interrupted: bool) -> Iterator[NodeResult]:
        for node in planned.nodes:
            if node.id in self._results:
                yield self._results[node.id]
                continue
            running = interrupted and node.id == self._running
            yield NodeResult(
                id=node.id,
                stage=node.node.stage,
                kind=node.kind,
                key=node.key,
                status="interrupted" if running else "not run",
            )


def _run_with_prefect(planned: Plan, name: str, recorder: _Recorder) -> None:
    from specflow.workflow.prefect_flow import prefect_settings, run_as_prefect_flow
    from specflow.workflow.server import prefect_server

    execution = recorder.execution
    home = planned.store.root / ".prefect"
    with prefect_server(home, log=execution.logs / "prefect-server.log") as server:
        if server.ours:
            execution.console.message(f"Prefect UI while this runs: {server.api_url.removesuffix('/api')}")
        with prefect_settings(server.api_url, home):
            run_as_prefect_flow(
                planned, run_name=name, execute=recorder.execute, skip=recorder.skip, ready=server.wait_until_ready
            )


def _run_in_flow_run(planned: Plan, name: str, recorder: _Recorder) -> None:
    from specflow.workflow.prefect_flow import run_nodes

    run_nodes(planned, run_name=name, execute=recorder.execute, skip=recorder.skip)


def _server_error() -> type[Exception]:
    from specflow.workflow.server import ServerError

    return ServerError


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with its processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
