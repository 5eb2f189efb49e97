"""The process worker of a local server: ``python -m specflow.workflow.pool_worker POOL``.

A run whose process a killed worker left behind is given back first, so that this one takes it up again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import httpx
import psutil

from specflow.workflow.cancelling import taken
from specflow.workflow.orphans import die_with_parent
from specflow.workflow.server import START_SECONDS

RUNS_AT_ONCE = 4


def main(pool: str) -> None:
    die_with_parent()
    _wait_for_server(os.environ["PREFECT_API_URL"])
    asyncio.run(_work(pool))


def _wait_for_server(api_url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(trust_env=False) as client:
        while time.monotonic() < deadline:
            try:
                if client.get(f"{api_url}/health", timeout=10.0).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
    raise SystemExit(f"no server at {api_url}")


async def _work(pool: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.workers.process import ProcessWorker

    async with get_client() as client:
        for run in await give_back(client, pool):
            print(f"{time.strftime('%F %T')} run {run} was left by a worker that is gone; scheduled again", flush=True)
    worker: Any = ProcessWorker(work_pool_name=pool, name="specflow-worker", limit=RUNS_AT_ONCE)
    await worker.start()


async def give_back(client: Any, pool: str) -> list[str]:
    """Schedule again every run of a pool that counts as taken and has no process; returns their names.

    A run that the server does not give back is left to the next worker: it must not keep this one from working.
    """
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
    from prefect.exceptions import PrefectHTTPStatusError

    runs = await client.read_flow_runs(
        flow_run_filter=taken(),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )
    found = []
    for run in runs:
        if _has_process(run.infrastructure_pid):
            continue
        try:
            await client.set_flow_run_state(run.id, await _next_state(client, run), force=True)
        except PrefectHTTPStatusError as error:
            print(f"{time.strftime('%F %T')} run {run.name} could not be given back: {error}", flush=True)
        else:
            found.append(run.name)
    return found


async def _next_state(client: Any, run: Any) -> Any:
    """Scheduled again, unless it was being cancelled or nothing is left that says what it is to do."""
    from prefect.client.schemas.objects import StateType
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Cancelled, Scheduled

    if run.state is not None and run.state.type == StateType.CANCELLING:
        return Cancelled()
    try:
        if run.deployment_id is not None:
            await client.read_deployment(run.deployment_id)
    except ObjectNotFound:
        return Cancelled(message="the worker was lost, and its deployment is gone")
    return Scheduled(message="the worker was lost; the run starts again")


def _has_process(infrastructure: str | None) -> bool:
    """Prefect keeps ``host:pid`` or the bare number."""
    number = (infrastructure or "").rpartition(":")[2]
    return number.isdecimal() and psutil.pid_exists(int(number))


if __name__ == "__main__":
    main(sys.argv[1])
