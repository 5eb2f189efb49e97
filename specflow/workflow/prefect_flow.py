"""The run as Prefect sees it: one flow run, one task run per node, one Prefect artifact per artifact of ours.

Prefect holds states; it never decides what is cached. Its parameters are names and keys, nothing large.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specflow.workflow.planning import Plan, PlannedNode
from specflow.workflow.results import NodeResult

FLUSH_SECONDS = 10.0

Execute = Callable[[PlannedNode], NodeResult]
Skip = Callable[[PlannedNode, list[str]], NodeResult]


@contextmanager
def prefect_settings(api_url: str, home: Path) -> Iterator[None]:
    """Import Prefect and point it at ``api_url``, without touching the user's own Prefect home or profile."""
    home.mkdir(parents=True, exist_ok=True)
    with _environment(PREFECT_HOME=str(home), PREFECT_PROFILES_PATH=str(home / "profiles.toml"), DO_NOT_TRACK="1"):
        from prefect import settings

        _quieten()
        updates: dict[Any, Any] = {
            settings.PREFECT_API_URL: api_url,
            settings.PREFECT_HOME: home,
            settings.PREFECT_LOGGING_LEVEL: "WARNING",
            settings.PREFECT_LOGGING_TO_API_ENABLED: False,
            settings.PREFECT_API_REQUEST_TIMEOUT: 120.0,
        }
        with settings.temporary_settings(updates=updates):
            yield


def run_as_prefect_flow(
    plan: Plan, *, run_name: str, execute: Execute, skip: Skip, ready: Callable[[], None]
) -> list[NodeResult]:
    """Run every node in order; after a failure, the nodes that do not depend on it still run.

    ``ready`` is called once Prefect is imported, which takes seconds that the server can use to start.
    """
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.states import Cancelled, Completed, Failed

    ready()
    by_id = {planned.id: planned for planned in plan.nodes}
    results: dict[str, NodeResult] = {}

    @task(cache_policy=NO_CACHE, persist_result=False, retries=0)
    def stage(node: str, key: str) -> Any:
        planned = by_id[node]
        failed = [need for need in planned.node.needs if need in results and not results[need].succeeded]
        result = skip(planned, failed) if failed else execute(planned)
        results[node] = result
        if result.status == "not run":
            return Cancelled(name="NotRun", message=result.message)
        if not result.succeeded:
            return Failed(message=f"{result.message}; log: {result.log}")
        _publish(planned, result)
        if result.status == "cached":
            return Completed(name="Cached", message=f"{planned.kind}/{key[:12]} exists and verifies")
        return Completed(message=f"made {planned.kind}/{key[:12]} in {result.seconds:.1f} s")

    def body(config: str) -> Any:
        # Again, because Prefect configures its loggers when a flow starts.
        _quieten()
        states: dict[str, Any] = {}
        for planned in plan.nodes:
            finished = [states[need] for need in planned.node.needs if need in states and states[need].is_completed()]
            named = stage.with_options(name=planned.node.stage, task_run_name=planned.id)
            states[planned.id] = named(planned.id, planned.key, wait_for=finished, return_state=True)
        bad = [name for name in by_id if name not in results or not results[name].succeeded]
        return (
            Failed(message=f"failed or not run: {', '.join(bad)}") if bad else Completed(message="all artifacts exist")
        )

    decorate = flow(name=plan.flow, flow_run_name=run_name, persist_result=False, validate_parameters=False)
    state: Any = decorate(body)(run_name, return_state=True)
    _flush_events(state.state_details.flow_run_id)
    return [results[name] for name in by_id if name in results]


def _flush_events(flow_run: Any) -> None:
    """Send what is still queued, and wait until the server has it: states of task runs travel as events."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.events.worker import EventsWorker

    with suppress(Exception):
        EventsWorker.drain_all(timeout=10.0, at_exit=False)
        deadline = time.monotonic() + FLUSH_SECONDS
        with get_client(sync_client=True) as client:
            while time.monotonic() < deadline:
                runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
                if all(run.state and run.state.is_final() for run in runs):
                    return
                time.sleep(0.2)


def _publish(planned: PlannedNode, result: NodeResult) -> None:
    """Link key, place, metrics and lineage from the UI. A server that refuses does not fail the stage."""
    from prefect.artifacts import create_markdown_artifact

    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"specflow-{planned.id}".lower())
    try:
        create_markdown_artifact(
            markdown=_describe(planned, result), key=name, description=f"{planned.kind} {planned.id}"
        )
    except Exception as error:
        logging.getLogger(__name__).warning("no Prefect artifact for %s: %s", planned.id, error)


def _describe(planned: PlannedNode, result: NodeResult) -> str:
    rows = [("status", result.status), ("key", planned.key), ("path", str(result.path)), ("log", str(result.log or ""))]
    rows += [(f"input {kind}", key) for kind, key in planned.inputs]
    lines = ["| artifact | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in rows if value)]
    lines += ["", "| metric | value |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in result.metrics.items()]
    return "\n".join(lines)


def _quieten() -> None:
    """Our console tells what happens; Prefect speaks only of its own trouble."""
    for name, level in (("prefect", logging.WARNING), ("prefect.flow_runs", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
    logging.getLogger("prefect.task_runs").setLevel(logging.CRITICAL)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Prefect reads these when it is imported and in its threads; put back afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
