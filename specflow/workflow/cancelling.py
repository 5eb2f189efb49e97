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


def runs_of(client: Any, deployment: Any, states: Any, *, sort: str, limit: int | None = None) -> list[Any]:
    """Runs of a deployment whose state is one of a filter (see ``in_states``)."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

    return list(
        client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
            flow_run_filter=states,
            sort=sort,
            limit=limit,
        )
    )


def in_states(types: Sequence[Any]) -> Any:
    """Filter: runs whose state is of one of these types."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType

    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))))


def taken() -> Any:
    """Filter: runs that a worker has taken and that are not over."""
    from prefect.client.schemas.objects import StateType

    return in_states([StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])


def in_progress(client: Any, deployment: Any) -> list[Any]:
    """Runs of a deployment that a worker has taken, the oldest first."""
    from prefect.client.schemas.sorting import FlowRunSort

    return runs_of(client, deployment, taken(), sort=FlowRunSort.START_TIME_ASC)


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
