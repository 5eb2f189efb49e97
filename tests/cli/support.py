"""Running the command line in this process, and a store with three artifacts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from specflow.cli.main import app
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.results import NodeResult, RunResult
from specflow.workflow.store import ArtifactStore


def specflow(*arguments: str | Path) -> Result:
    """Run a command; its standard output and error are kept apart."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document(result: Result) -> Any:
    """Standard output as the single JSON document that it must be."""
    return json.loads(result.stdout)


def make_artifact(
    store: ArtifactStore, kind: str, *, inputs: dict[str, list[str]], metrics: dict[str, Any], item: str | None = None
) -> str:
    """Commit an artifact with a ten-byte file; returns its key."""
    key = hashlib.sha256(f"{kind}{item}".encode()).hexdigest()
    recipe = Recipe(
        kind=kind,
        key=key,
        stage=kind,
        item=item,
        code_version="1",
        parameters={"size": 3},
        key_parameters={"size": 3},
        inputs=inputs,
    )
    attempt = Attempt(store, recipe)
    attempt.prepare()
    (attempt.output / "data.txt").write_text("0123456789")
    attempt.commit(metrics)
    return key


def fill(root: Path) -> dict[str, str]:
    """A target, the conversations made from it, and a drafter made from both; keys by kind."""
    store = ArtifactStore(root)
    target = make_artifact(store, "target", inputs={}, metrics={"layers": 4})
    conversations = make_artifact(
        store, "conversations", inputs={"target": [target]}, metrics={"rows": 2, "share": 0.5}
    )
    inputs = {"target": [target], "conversations": [conversations]}
    drafter = make_artifact(store, "drafter", inputs=inputs, metrics={"tau": {"service": 2.25}}, item="first")
    return {"target": target, "conversations": conversations, "drafter": drafter}


def run_result(status: str = "made", *, interrupted: bool = False) -> RunResult:
    """One node with a result."""
    node = NodeResult(
        id="train:first", stage="train", kind="drafter", key="0" * 64, status=status, metrics={"tau": 2.5}
    )  # type: ignore[arg-type]
    return RunResult(flow="full-pipeline", name="run", nodes=(node,), seconds=65.0, interrupted=interrupted)
