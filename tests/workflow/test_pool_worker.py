"""What a worker does with the runs that the one before it left, without a server."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import psutil
import pytest
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from specflow.workflow.pool_worker import give_back


class Client:
    """The calls that `give_back` makes; one deployment is gone, one run cannot be given back."""

    def __init__(self, runs: list[Any], *, gone: UUID, refused: str) -> None:
        self.runs, self.gone, self.refused = runs, gone, refused
        self.states: dict[str, StateType] = {}

    async def read_flow_runs(self, **filters: Any) -> list[Any]:
        return self.runs

    async def read_deployment(self, deployment: UUID) -> Any:
        if deployment == self.gone:
            raise ObjectNotFound(http_exc=Exception())

    async def set_flow_run_state(self, run: UUID, state: Any, *, force: bool) -> None:
        (name,) = (one.name for one in self.runs if one.id == run)
        if name == self.refused:
            answer = httpx.Response(500, request=httpx.Request("POST", "http://server/set_state"))
            raise PrefectHTTPStatusError("500", request=answer.request, response=answer)
        assert force
        self.states[name] = state.type


def run(name: str, *, deployment: UUID | None, pid: str | None = None, type: StateType = StateType.RUNNING) -> Any:
    state = SimpleNamespace(type=type)
    return SimpleNamespace(id=uuid4(), name=name, deployment_id=deployment, infrastructure_pid=pid, state=state)


def test_every_run_that_was_left_is_given_back_and_one_that_cannot_be_stops_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known, gone = uuid4(), uuid4()
    free = next(number for number in range(300_000, 400_000) if not psutil.pid_exists(number))
    runs = [
        run("refused", deployment=gone),
        run("left", deployment=known, pid=f"host:{free}"),
        run("never-started", deployment=known, type=StateType.PENDING),
        run("alive", deployment=known, pid=f"host:{os.getpid()}"),
        run("ending", deployment=known, type=StateType.CANCELLING),
        run("without-deployment", deployment=gone),
        run("of-none", deployment=None),
    ]
    client = Client(runs, gone=gone, refused="refused")
    found = asyncio.run(give_back(client, "specflow"))
    assert client.states == {
        "left": StateType.SCHEDULED,
        "never-started": StateType.SCHEDULED,
        "ending": StateType.CANCELLED,
        "without-deployment": StateType.CANCELLED,
        "of-none": StateType.SCHEDULED,
    }
    assert found == list(client.states)
    assert "run refused could not be given back" in capsys.readouterr().out
