"""Runs of a deployment that are not over: found, and cancelled before the deployment goes.

A deployment that is removed takes its concurrency limit along. A run that holds a slot of that limit could then not
end: the server refuses each of its states until the lease has run out, and a worker that reports one ends with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

CANCEL_SECONDS = 60.0
"""A worker ends a process within Prefect's grace of 30 s; without a worker nobody does."""
LOOK_SECONDS = 0.5


def in_progress(client: Any, deployment: Any) -> list[Any]:
    """Runs of a deployment that a worker has taken, the oldest first."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    return list(
        client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
            flow_run_filter=FlowRunFilter(state=taken()),
            sort=FlowRunSort.START_TIME_ASC,
        )
    )


def taken() -> Any:
    """Filter: states of a run that a worker has taken and that is not over."""
    from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    types = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=types))


def cancel(client: Any, runs: Sequence[Any], seconds: float = CANCEL_SECONDS) -> None:
    """Have the workers end runs, and wait for it; a run that no worker ends in time is written off as cancelled."""
    from prefect.states import Cancelled, Cancelling

    for run in runs:
        client.set_flow_run_state(run.id, Cancelling(message="its deployment is being removed"))
    deadline = time.monotonic() + seconds
    left = list(runs)
    while left and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        left = [run for run in left if not client.read_flow_run(run.id).state.is_final()]
    for run in left:
        client.set_flow_run_state(run.id, Cancelled(message=f"no worker ended it within {seconds:g} s"), force=True)
