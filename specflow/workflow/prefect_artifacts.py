"""What the Prefect UI shows of a run: a page per node, a table of the whole run, links to reports, pictures."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specflow.workflow.planning import Plan, PlannedNode
from specflow.workflow.results import NodeResult, key_metrics

LARGEST_IMAGE = 300_000
"""Bytes; a picture travels whole, as a data address, and Prefect keeps it in its database."""


def publish_node(planned: PlannedNode, result: NodeResult) -> None:
    """Key, place, metrics and lineage of an artifact; its pages as links and its small pictures."""
    from prefect.artifacts import create_image_artifact, create_link_artifact, create_markdown_artifact

    name = artifact_key(planned.id)
    title = f"{planned.kind} {planned.id}"
    _quietly(name, lambda: create_markdown_artifact(_describe(planned, result), key=name, description=title))
    for page in _files(result, "*.html"):
        key = artifact_key(f"{planned.id}-{page.stem}-page")
        _quietly(key, partial(create_link_artifact, page.absolute().as_uri(), link_text=page.name, key=key))
    for picture in _files(result, "*.png"):
        if picture.stat().st_size <= LARGEST_IMAGE:
            data = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
            key = artifact_key(f"{planned.id}-{picture.stem}-picture")
            _quietly(key, partial(create_image_artifact, data, key=key, description=picture.name))


def publish_run(plan: Plan, run_name: str, results: Sequence[NodeResult]) -> None:
    """One table: every node, how it ended, its key, how long it took, its first figures."""
    from prefect.artifacts import create_table_artifact

    key = artifact_key(f"{plan.flow}-run")
    _quietly(key, lambda: create_table_artifact(run_table(results), key=key, description=run_name))


def run_table(results: Sequence[NodeResult]) -> list[dict[str, Any]]:
    return [
        {
            "node": result.id,
            "status": result.status,
            "artifact": f"{result.kind}/{result.key[:12]}",
            "seconds": round(result.seconds, 1),
            "figures": key_metrics(result.metrics) if result.succeeded else result.message,
        }
        for result in results
    ]


def artifact_key(text: str) -> str:
    """A key as Prefect permits them: small letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in f"specflow-{text}".lower())


def _quietly(name: str, publish: Callable[[], Any]) -> None:
    """A server that refuses does not fail the stage."""
    try:
        publish()
    except Exception as error:
        logging.getLogger(__name__).warning("no Prefect artifact %s: %s", name, error)


def _files(result: NodeResult, pattern: str) -> list[Path]:
    return sorted(result.path.glob(pattern)) if result.path else []


def _describe(planned: PlannedNode, result: NodeResult) -> str:
    rows = [("status", result.status), ("key", planned.key), ("path", str(result.path)), ("log", str(result.log or ""))]
    rows += [(f"input {kind}", key) for kind, key in planned.inputs]
    lines = ["| artifact | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in rows if value)]
    lines += ["", "| metric | value |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in result.metrics.items()]
    return "\n".join(lines)
