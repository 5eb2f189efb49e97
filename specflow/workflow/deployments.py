"""Deployments: what a Prefect server is to run when, compared with what it knows, created or updated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specflow.stages.contract import StageError
from specflow.workflow.cancelling import cancel as cancel_runs
from specflow.workflow.cancelling import in_progress, in_states, runs_of
from specflow.workflow.history import changes

TAG = "specflow"
RUN = "specflow.cli.scheduled.run_flow"
WATCH = "specflow.cli.scheduled.watch_once"
PoolType = Literal["process", "docker", "kubernetes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """``flow/name`` in Prefect. Parameters are names and overrides, never data and never a secret."""

    flow: str
    name: str
    entrypoint: str
    parameters: dict[str, Any]
    schedule: dict[str, Any] | None
    """``{"cron": ..., "timezone": ...}`` or ``{"interval": seconds}``; none: started by hand or by another."""
    pool: str
    pool_type: PoolType = "process"
    directory: Path | None = None
    """Where a process starts, which relative paths of the configuration are relative to."""
    description: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.flow}/{self.name}"

    def content(self) -> dict[str, Any]:
        """What an update compares."""
        return {
            "entrypoint": self.entrypoint,
            "parameters": self.parameters,
            "schedule": self.schedule,
            "pool": self.pool,
            "job": {"working_dir": str(self.directory)} if self.directory else {},
            "description": self.description,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an update does, or would do."""

    name: str
    what: Literal["create", "update", "unchanged"]
    lines: list[str] = field(default_factory=list)
    """``path old -> new`` for every difference."""


def difference(wanted: Deployment, known: dict[str, Any] | None) -> Change:
    """``known``: content of the deployment that the server has under this name; none if it has none."""
    content = wanted.content()
    if known is None:
        nothing: dict[str, Any] = {name: {} if isinstance(value, dict) else None for name, value in content.items()}
        return Change(name=wanted.full_name, what="create", lines=list(changes(nothing, content)))
    lines = list(changes(known, content))
    return Change(name=wanted.full_name, what="update" if lines else "unchanged", lines=lines)


class Deployments:
    """The deployments of ours that one Prefect server has."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def pool_problem(self, wanted: Deployment) -> str:
        """Why the pool cannot take a deployment, empty if it can: one that is there already keeps its type."""
        from prefect.exceptions import ObjectNotFound

        try:
            kind = self._client.read_work_pool(wanted.pool).type
        except ObjectNotFound:
            return ""
        return "" if kind == wanted.pool_type else f"work pool {wanted.pool!r} exists and is of type {kind}"

    def compare(self, wanted: Deployment) -> Change:
        known = self._read(wanted.full_name)
        return difference(wanted, self._content(known) if known else None)

    def apply(self, wanted: Deployment) -> Change:
        """Create or update; a deployment that is so already is left alone.

        A run that falls due while the one before it still runs is left out, not queued.
        """
        from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions

        change = self.compare(wanted)
        if change.what == "unchanged":
            return change
        self._require_pool(wanted.pool, wanted.pool_type)
        content = wanted.content()
        self._client.create_deployment(
            flow_id=self._client.create_flow_from_name(wanted.flow),
            name=wanted.name,
            parameters=content["parameters"],
            schedules=_schedules(wanted.schedule),
            entrypoint=wanted.entrypoint,
            work_pool_name=wanted.pool,
            job_variables=content["job"],
            description=wanted.description,
            tags=[TAG],
            concurrency_limit=1,
            concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
            enforce_parameter_schema=False,
        )
        return change

    def remove(self, name: str, *, cancel: bool = False) -> bool:
        """Remove one with its future runs; whether there was one.

        Raises ``StageError`` where a worker has a run of it, unless ``cancel`` has them cancelled first.
        """
        known = self._read(name)
        if known is None:
            return False
        was_paused = known.paused
        self._client.pause_deployment(known.id)  # none begins between the look and the removal
        runs = in_progress(self._client, known.id)
        if runs and not cancel:
            if not was_paused:
                self._client.resume_deployment(known.id)
            raise StageError(
                f"{name} has runs in progress: {', '.join(run.name for run in runs)}; nothing was removed: wait until "
                "they end, or give --cancel (what they made is kept)"
            )
        cancel_runs(self._client, runs)
        self._client.delete_deployment(known.id)
        return True

    def all(self) -> list[dict[str, Any]]:
        """Name, schedule, pool, parameters, last and next run of every deployment of ours."""
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

        found = self._client.read_deployments(
            deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG])), limit=200
        )
        return [
            {"name": name, **self._content(known), "paused": known.paused, **self._runs(known.id)}
            for name, known in sorted((f"{self._client.read_flow(d.flow_id).name}/{d.name}", d) for d in found)
        ]

    def _runs(self, deployment: Any) -> dict[str, Any]:
        from prefect.client.schemas.objects import StateType
        from prefect.client.schemas.sorting import FlowRunSort

        scheduled = [StateType.SCHEDULED]
        # Left out while another ran: cancelled.
        begun = [
            type for type in StateType if type not in (StateType.SCHEDULED, StateType.PENDING, StateType.CANCELLED)
        ]
        last = self._first_run(deployment, begun, FlowRunSort.START_TIME_DESC)
        following = self._first_run(deployment, scheduled, FlowRunSort.EXPECTED_START_TIME_ASC)
        return {
            "last": last.state.name if last else None,
            "last_start": last.start_time.isoformat() if last and last.start_time else None,
            "next": following.expected_start_time.isoformat() if following else None,
        }

    def _first_run(self, deployment: Any, types: Sequence[Any], sort: Any) -> Any:
        found = runs_of(self._client, deployment, in_states(types), sort=sort, limit=1)
        return found[0] if found else None

    def _read(self, name: str) -> Any:
        from prefect.exceptions import ObjectNotFound

        try:
            return self._client.read_deployment_by_name(name)
        except ObjectNotFound:
            return None

    @staticmethod
    def _content(known: Any) -> dict[str, Any]:
        return {
            "entrypoint": known.entrypoint,
            "parameters": known.parameters,
            "schedule": _schedule(known.schedules),
            "pool": known.work_pool_name,
            "job": known.job_variables or {},
            "description": known.description or "",
        }

    def _require_pool(self, name: str, kind: PoolType) -> None:
        from prefect.client.schemas.actions import WorkPoolCreate
        from prefect.exceptions import ObjectNotFound

        try:
            self._client.read_work_pool(name)
        except ObjectNotFound:
            template = _job_template(kind)
            self._client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template))


def _job_template(kind: PoolType) -> dict[str, Any]:
    """The job template that Prefect has for a type of pool, which a worker of it fills in."""
    import asyncio

    import prefect.workers.process  # noqa: F401  # makes its type known
    from prefect.workers.utilities import get_default_base_job_template_for_infrastructure_type

    found = asyncio.run(get_default_base_job_template_for_infrastructure_type(kind))
    return found or {}


def cron_problem(cron: str, timezone: str) -> str:
    """Why Prefect would refuse a schedule; empty if it would not."""
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as error:
        return "; ".join(str(one["msg"]) for one in error.errors())
    return ""


def _schedules(schedule: dict[str, Any] | None) -> list[Any]:
    from datetime import timedelta

    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    if schedule is None:
        return []
    if "cron" in schedule:
        made: Any = CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    else:
        made = IntervalSchedule(interval=timedelta(seconds=schedule["interval"]))
    return [DeploymentScheduleCreate(schedule=made, active=True)]


def _schedule(schedules: Sequence[Any]) -> dict[str, Any] | None:
    """The schedule as ``Deployment`` states it; of several, which only others make, all of them as text."""
    if not schedules:
        return None
    if len(schedules) > 1 or not schedules[0].active:
        return {"others": "; ".join(f"{s.schedule} active={s.active}" for s in schedules)}
    found = schedules[0].schedule
    if hasattr(found, "cron"):
        return {"cron": found.cron, "timezone": found.timezone}
    if hasattr(found, "interval"):
        return {"interval": found.interval.total_seconds()}
    return {"others": str(found)}


@contextmanager
def deployments_at(api_url: str, home: Path) -> Iterator[Deployments]:
    """The deployments of the server at ``api_url``."""
    from specflow.workflow.prefect_flow import prefect_settings

    with prefect_settings(api_url, home):
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            yield Deployments(client)
