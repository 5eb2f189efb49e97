"""A flow run in this process: every stage as the worker runs it, without Prefect and without starting processes."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specflow.stages.contract import StageError
from specflow.workflow.console import PlainConsole
from specflow.workflow.execution import Execution
from specflow.workflow.planning import Plan, PlannedNode
from specflow.workflow.registry import STAGES
from specflow.workflow.results import NodeResult
from specflow.workflow.worker import perform


class _Sender:
    """Keeps the messages of a stage."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def send(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))


class InProcess(Execution):
    def _make(self, planned: PlannedNode) -> NodeResult:
        sender: Any = _Sender()
        try:
            perform(self._work(planned), sender)
        except StageError as error:
            return self._result(planned, "failed", message=str(error))
        return self._result(planned, "made" if sender.events[-1][0] == "made" else "cached")


@dataclass
class Made:
    statuses: dict[str, str] = field(default_factory=dict)
    text: str = ""
    messages: dict[str, str] = field(default_factory=dict)

    def of(self, status: str) -> set[str]:
        return {name for name, found in self.statuses.items() if found == status}


def make(plan: Plan, logs: Path) -> Made:
    """Every node in order; those that need a failed one are not run."""
    assert not plan.problems, plan.problems
    stream = io.StringIO()
    execution = InProcess(plan.store, STAGES, PlainConsole(stream), logs)
    made = Made()
    for planned in plan.nodes:
        failed = [need for need in planned.node.needs if made.statuses.get(need) in ("failed", "not run")]
        result = execution.not_run(planned, failed) if failed else execution.run(planned)
        made.statuses[planned.id], made.messages[planned.id] = result.status, result.message
    made.text = stream.getvalue()
    return made
