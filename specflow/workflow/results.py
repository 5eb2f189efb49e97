"""What a run did: one result per node, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["made", "cached", "failed", "not run", "interrupted"]

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    id: str
    stage: str
    kind: str
    key: str
    status: Status
    seconds: float = 0.0
    message: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    """The artifact, where there is one."""
    log: Path | None = None
    accident: bool = False
    """Whether a failure may be gone the next time: no message of the stage to the user, and no time limit."""

    @property
    def succeeded(self) -> bool:
        return self.status in ("made", "cached")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    flow: str
    name: str
    """Name of the run; its logs are in ``.logs/<name>`` of the store."""
    nodes: tuple[NodeResult, ...]
    seconds: float
    interrupted: bool = False
    problem: str = ""
    """Why the run itself failed, where no node is to blame."""

    @property
    def exit_code(self) -> int:
        """0 only if every artifact asked for exists."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        complete = not self.problem and all(node.succeeded for node in self.nodes)
        return EXIT_OK if complete else EXIT_FAILED

    def node(self, name: str) -> NodeResult:
        return next(node for node in self.nodes if node.id == name)

    def as_json(self) -> dict[str, Any]:
        nodes = []
        for node in self.nodes:
            paths = {name: str(value) if value else None for name, value in (("path", node.path), ("log", node.log))}
            nodes.append({**asdict(node), "metrics": dict(node.metrics), **paths})
        return {
            "flow": self.flow,
            "run": self.name,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "problem": self.problem,
            "nodes": nodes,
        }


def key_metrics(metrics: Mapping[str, Any], *, limit: int = 4) -> str:
    """The first numbers and words of an artifact's metrics, for one line."""
    shown = []
    for name, value in metrics.items():
        if isinstance(value, float):
            shown.append(f"{name} {value:.4g}")
        elif isinstance(value, int | str) and len(str(value)) <= 24:
            shown.append(f"{name} {value}")
    return "  ".join(shown[:limit])
