"""The run as Prefect sees it: one flow run, one task run per node, one Prefect artifact per artifact of ours.

Prefect holds states; it never decides what is cached. Its parameters are names and keys, nothing large.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specflow.workflow.device_slots import device_slot
from specflow.workflow.notifying import notify
from specflow.workflow.planning import Plan, PlannedNode
from specflow.workflow.policies import delays, device, retries
from specflow.workflow.prefect_artifacts import publish_node, publish_run
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
    """Run every node as a task of a new flow run.

    ``ready`` is called once Prefect is imported, which takes seconds that the server can use to start.
    """
    from prefect import flow

    ready()
    found: list[NodeResult] = []

    def body(config: str) -> Any:
        # Again, because Prefect configures its loggers when a flow starts.
        _quieten()
        found.extend(run_nodes(plan, run_name=run_name, execute=execute, skip=skip))
        return final_state(plan, found)

    decorate = flow(name=plan.flow, flow_run_name=run_name, persist_result=False, validate_parameters=False)
    state: Any = decorate(body)(run_name, return_state=True)
    _flush_events(state.state_details.flow_run_id)
    return found


def run_nodes(plan: Plan, *, run_name: str, execute: Execute, skip: Skip) -> list[NodeResult]:
    """Run every node in order, as tasks of the flow run that this is called in.

    After a failure, the nodes that do not depend on it still run.
    """
    results: dict[str, NodeResult] = {}
    states: dict[str, Any] = {}
    for planned in plan.nodes:
        finished = [states[need] for need in planned.node.needs if need in states and states[need].is_completed()]
        stage = _task(planned, plan, results, execute, skip)
        states[planned.id] = stage(planned.key, wait_for=finished, return_state=True)
    found = [results[planned.id] for planned in plan.nodes if planned.id in results]
    publish_run(plan, run_name, found)
    notify(plan.operations, run_name, found)
    return found


def final_state(plan: Plan, results: Sequence[NodeResult]) -> Any:
    """The state of the flow run: completed only if every artifact exists."""
    from prefect.states import Completed, Failed

    good = {result.id for result in results if result.succeeded}
    bad = [planned.id for planned in plan.nodes if planned.id not in good]
    return Failed(message=f"failed or not run: {', '.join(bad)}") if bad else Completed(message="all artifacts exist")


class _Accident(Exception):
    """A failure that may be gone the next time."""


def _task(planned: PlannedNode, plan: Plan, results: dict[str, NodeResult], execute: Execute, skip: Skip) -> Any:
    """The node as a Prefect task, which is given its key."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE
    from prefect.states import Cancelled, Completed, Failed

    def body(key: str) -> Any:
        failed = [need for need in planned.node.needs if need in results and not results[need].succeeded]
        if failed:
            result = skip(planned, failed)
        else:
            with device_slot(None if planned.state == "cached" else device(planned.node, plan.operations)):
                result = execute(planned)
        results[planned.id] = result
        if result.status == "not run":
            return Cancelled(name="NotRun", message=result.message)
        if result.accident:
            raise _Accident(f"{result.message}; log: {result.log}")
        if not result.succeeded:
            return Failed(message=f"{result.message}; log: {result.log}")
        publish_node(planned, result)
        if result.status == "cached":
            return Completed(name="Cached", message=f"{planned.kind}/{key[:12]} exists and verifies")
        return Completed(message=f"made {planned.kind}/{key[:12]} in {result.seconds:.1f} s")

    decorate = task(
        name=planned.node.stage,
        task_run_name=planned.id.replace("{", "(").replace("}", ")"),
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=retries(planned.node, plan.operations),
        retry_delay_seconds=delays(plan.operations),
        retry_condition_fn=_by_accident,
    )
    return decorate(body)


def _by_accident(task: Any, run: Any, state: Any) -> bool:
    """Only what was raised as an accident is tried again; a message of a stage to the user stays the same."""
    data = getattr(state, "data", None)
    return isinstance(data, _Accident) or isinstance(getattr(data, "result", None), _Accident)


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
