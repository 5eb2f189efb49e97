"""Running one node: its stage in a process of its own, watched from here."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from specflow.config.gate import GateParams
from specflow.config.operations import OperationsParams
from specflow.stages.gate import KIND as DECISION
from specflow.workflow.console import Console
from specflow.workflow.events import Event, receive
from specflow.workflow.launching import Launcher
from specflow.workflow.planning import PlannedNode
from specflow.workflow.policies import time_limit
from specflow.workflow.promoting import enter_decision, enter_failure
from specflow.workflow.promotion import RegistryError
from specflow.workflow.registry import Registry
from specflow.workflow.results import NodeResult, Status
from specflow.workflow.store import ArtifactStore
from specflow.workflow.worker import Work


@dataclass(slots=True)
class Execution:
    """Runs nodes for one run; logs go to ``logs``."""

    store: ArtifactStore
    registry: Registry
    console: Console
    logs: Path
    launcher: Launcher = field(default_factory=Launcher)
    operations: OperationsParams = field(default_factory=OperationsParams)

    def run(self, planned: PlannedNode) -> NodeResult:
        """The node's artifact, cached or made. ``KeyboardInterrupt`` ends the stage's processes and goes on."""
        # Looked at again: an input that this run made anew may have other content than the one it was made from.
        outdated = self.store.outdated(planned.kind, planned.key) if planned.state == "cached" else []
        if planned.state == "cached" and not outdated:
            result = self._result(planned, "cached")
        else:
            self.console.node_started(planned.id, "; ".join(outdated) or planned.reason)
            result = self._make(planned)
        entered = ""
        if result.succeeded and planned.kind == DECISION:
            result, entered = self._entered(planned, result)
        self.console.node_finished(result)
        if entered:
            self.console.message(entered)
        return result

    def not_run(self, planned: PlannedNode, failed: list[str]) -> NodeResult:
        result = self._result(planned, "not run", message=f"needs {', '.join(failed)}")
        self.console.node_finished(result)
        if isinstance(planned.node.params, GateParams):
            reason = f"nothing was decided, because {', '.join(failed)} failed or did not run"
            for line in enter_failure(self.store, planned.inputs, service=planned.node.params.service, reason=reason):
                self.console.message(line)
        return result

    def _entered(self, planned: PlannedNode, result: NodeResult) -> tuple[NodeResult, str]:
        """The decision in the registry of drafters; what hinders that fails the node, whose artifact stays."""
        try:
            return result, enter_decision(self.store, planned.key)
        except (RegistryError, OSError) as error:
            message = f"the decision was made and could not be entered: {error}"
            return replace(result, status="failed", message=message), ""

    def _make(self, planned: PlannedNode) -> NodeResult:
        started = time.monotonic()
        log = self.logs / f"{file_name(planned.id)}.log"
        last = self._watch(planned, log, limit=time_limit(planned.node, self.operations))
        seconds = time.monotonic() - started
        if last["event"] == "error":
            failed = self._result(planned, "failed", seconds=seconds, message=last["message"], log=log)
            return replace(failed, accident=last.get("accident", False))
        status: Status = "made" if last["event"] == "made" else "cached"
        return self._result(planned, status, seconds=seconds, log=log)

    def _watch(self, planned: PlannedNode, log: Path, *, limit: float | None) -> Event:
        """Show the process's events; returns the one that says how it ended, at the latest ``limit`` seconds on."""
        deadline = time.monotonic() + (limit or math.inf)
        spec = log.with_suffix(".json")
        spec.parent.mkdir(parents=True, exist_ok=True)
        spec.write_text(self._work(planned).model_dump_json(indent=2), encoding="utf-8")
        reader, writer = os.pipe()
        process = None
        last: Event | None = None
        try:
            process = self.launcher.start(spec, writer, log=log)
            os.close(writer)
            writer = -1
            started = process
            for event in receive(reader, alive=lambda: started.poll() is None and time.monotonic() < deadline):
                if event["event"] in ("made", "cached", "error"):
                    last = event
                else:
                    self._show(planned, event)
            if time.monotonic() >= deadline and last is None and process.poll() is None:
                return {"event": "error", "message": _too_long(planned, limit or 0.0)}
            code = process.wait()
        finally:
            if process:
                process.end()
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        return last or {"event": "error", "message": _how_it_ended(code), "accident": code < 0}

    def _show(self, planned: PlannedNode, event: Event) -> None:
        fields = {name: value for name, value in event.items() if name != "event"}
        match event["event"]:
            case "log":
                self.console.log(planned.id, fields["message"])
            case "progress_start":
                self.console.progress_start(**fields)
            case "progress":
                self.console.progress(**fields)
            case "progress_end":
                self.console.progress_end(**fields)
            case "waiting":
                self.console.log(planned.id, "another process makes the same artifact; waiting for it")
            case "damaged":
                problems = "; ".join(fields["problems"][:3])
                self.console.log(planned.id, f"the artifact was damaged ({problems}); moved to {fields['path']}")
            case "outdated":
                problems = "; ".join(fields["problems"][:3])
                self.console.log(planned.id, f"{problems}; the artifact was moved to {fields['path']}")

    def _work(self, planned: PlannedNode) -> Work:
        params = planned.node.params
        return Work(
            module=self.registry.modules[planned.node.stage],
            params_class=f"{type(params).__module__}:{type(params).__qualname__}",
            params_json=params.model_dump_json(),
            recipe=planned.recipe,
            inputs=list(planned.inputs),
            store=self.store.root,
        )

    def _result(
        self, planned: PlannedNode, status: Status, *, seconds: float = 0.0, message: str = "", log: Path | None = None
    ) -> NodeResult:
        artifact = self.store.find(planned.kind, planned.key) if status in ("made", "cached") else None
        return NodeResult(
            id=planned.id,
            stage=planned.node.stage,
            kind=planned.kind,
            key=planned.key,
            status=status,
            seconds=seconds,
            message=message,
            metrics=artifact.metrics if artifact else {},
            path=artifact.path if artifact else None,
            log=log,
        )


def _too_long(planned: PlannedNode, limit: float) -> str:
    return (
        f"ended after {limit:g} s, its limit in operations.time_limits; finished pieces are kept: raise the limit and "
        f"run again to continue {planned.id}"
    )


def _how_it_ended(code: int) -> str:
    if code == -9:
        return "the stage's process was killed (signal 9), perhaps because memory ran out"
    return f"the stage's process ended by signal {-code}" if code < 0 else f"the stage's process ended with code {code}"


def file_name(text: str) -> str:
    """``text`` with a dash for everything that does not belong in the name of a file."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
