"""How plans, artifacts and lineage look: trees and tables, and the same as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from specflow.cli.output import bytes_text, duration_text
from specflow.features.comparison import Comparison, rows_of
from specflow.workflow.collection import Removed
from specflow.workflow.planning import Plan, PlannedNode
from specflow.workflow.record import ArtifactRecord
from specflow.workflow.results import NodeResult, RunResult
from specflow.workflow.store import ArtifactStore

STYLES = {"cached": "green", "to run": "yellow", "blocked": "red"}
KEY_LENGTH = 12


def plan_tree(plan: Plan) -> Tree:
    """The graph as a tree: a node stands below the latest of the nodes it needs, and names the others."""
    tree = Tree(Text(plan.flow, style="bold"), guide_style="dim")
    placed: dict[str, Tree] = {}
    order = {node.id: position for position, node in enumerate(plan.nodes)}
    for node in plan.nodes:
        needs = [need for need in node.node.needs if need in placed]
        parent = max(needs, key=lambda need: order[need], default=None)
        others = [need for need in node.node.needs if need != parent]
        placed[node.id] = (placed[parent] if parent else tree).add(_plan_line(node, others))
    return tree


def _plan_line(node: PlannedNode, others: Sequence[str]) -> Text:
    line = Text.assemble((node.id, "bold"), "  ", (node.state, STYLES[node.state]))
    if node.state == "cached" and node.record:
        made = f"{node.kind}/{node.key[:KEY_LENGTH]}, {bytes_text(node.record.bytes)}"
        line.append(f"  {made}", style="dim")
        condition = node.reason.partition("; ")[2]
        if condition:
            line.append(f"  {condition}")
        return line
    line.append(f"  {node.reason}")
    estimate = node.estimate
    costs = [text for text in (duration_text(estimate.seconds), bytes_text(estimate.bytes)) if text != "-"]
    if costs:
        line.append(f"  about {', '.join(costs)}")
    if estimate.note:
        line.append(f"  ({estimate.note})", style="dim")
    if others:
        line.append(f"  also needs {', '.join(others)}", style="dim")
    return line


def plan_summary(plan: Plan) -> str:
    """``3 cached, 6 to run (about 12 min, 1.2 GB; 80 GB free)``."""
    counts = {state: sum(node.state == state for node in plan.nodes) for state in STYLES}
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    known = [node.estimate.seconds for node in plan.to_run if node.estimate.seconds is not None]
    costs = []
    if known:
        unknown = len(plan.to_run) - len(known)
        also = f" and {unknown} of unknown duration" if unknown else ""
        costs.append(f"about {duration_text(sum(known))}{also}")
    if plan.bytes_needed:
        costs.append(f"{bytes_text(plan.bytes_needed)}; {bytes_text(plan.bytes_free)} free")
    return ", ".join(parts) + (f" ({', '.join(costs)})" if costs else "")


def plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "flow": plan.flow,
        "store": str(plan.store.root),
        "bytes_needed": plan.bytes_needed,
        "bytes_free": plan.bytes_free,
        "problems": [problem.as_json() for problem in plan.problems],
        "nodes": [_node_json(node) for node in plan.nodes],
    }


def _node_json(node: PlannedNode) -> dict[str, Any]:
    return {
        "id": node.id,
        "stage": node.node.stage,
        "item": node.node.item,
        "kind": node.kind,
        "key": node.key,
        "needs": list(node.node.needs),
        "state": node.state,
        "reason": node.reason,
        "estimate": {
            "bytes": node.estimate.bytes,
            "seconds": node.estimate.seconds,
            "note": node.estimate.note,
        },
    }


def store_line(store: ArtifactStore, records: Sequence[ArtifactRecord]) -> str:
    return f"{len(records)} artifacts in {store.root}, {bytes_text(sum(record.bytes for record in records))}"


def artifact_table(records: Iterable[ArtifactRecord], *, used: Callable[[ArtifactRecord], bool] | None = None) -> Table:
    """One line per artifact; ``used`` marks those that the flow reaches."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("artifact", "drafter", "made", "took"):
        table.add_column(name, no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    if used:
        table.add_column("used")
    for record in records:
        cells = [
            f"{record.kind}/{record.key[:KEY_LENGTH]}",
            record.item or "",
            f"{record.ended.astimezone():%Y-%m-%d %H:%M}",
            duration_text(record.seconds),
            bytes_text(record.bytes),
        ]
        if used:
            cells.append("yes" if used(record) else "no")
        table.add_row(*map(escape, cells))
    return table


def record_json(record: ArtifactRecord) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "key": record.key,
        "stage": record.stage,
        "item": record.item,
        "started": record.started.isoformat(),
        "ended": record.ended.isoformat(),
        "seconds": record.seconds,
        "bytes": record.bytes,
    }


def lineage_tree(store: ArtifactStore, record: ArtifactRecord) -> Tree:
    """The artifact and, below it, everything it was made from; what was shown already is not opened again."""
    shown: set[str] = set()

    def add(parent: Tree, kind: str, key: str) -> None:
        known = store.record(kind, key)
        name = f"{kind}/{key[:KEY_LENGTH]}"
        if known is None:
            parent.add(Text.assemble(name, "  ", ("not in the store", "yellow")))
            return
        item = f" {known.item}" if known.item else ""
        again = key in shown and any(known.inputs.values())
        branch = parent.add(Text.assemble(name, item, (f"  {bytes_text(known.bytes)}", "dim"), " ..." if again else ""))
        if key not in shown:
            shown.add(key)
            _add_inputs(branch, known.inputs, add)

    tree = Tree(Text("made from", style="dim"), guide_style="dim")
    _add_inputs(tree, record.inputs, add)
    return tree


def _add_inputs(tree: Tree, inputs: Mapping[str, Sequence[str]], add: Callable[[Tree, str, str], None]) -> None:
    for kind, keys in inputs.items():
        for key in keys:
            add(tree, kind, key)


def value_table(title: str, values: Mapping[str, Any]) -> Table:
    """Names and values, nested names dotted."""
    table = Table(box=None, pad_edge=False, show_header=False, title=title, title_justify="left", title_style="bold")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in flatten(values):
        table.add_row(escape(name), escape(value))
    return table


def plain_columns(names: Sequence[str], *, left: Sequence[int] = (0,)) -> Table:
    """A table without lines; the columns at ``left`` are aligned to the left, the others hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place in left else "right", overflow="fold")
    return table


def difference_table(found: Comparison) -> Table:
    """Every difference, under the names of both sides; what must agree comes first and is marked."""
    table = plain_columns([*found.header, ""], left=(0, 1, 2, 3))
    for row in rows_of(found.refused):
        table.add_row(*map(escape, row), "must agree", style="red")
    for row in rows_of(found.told):
        table.add_row(*map(escape, row), "may differ")
    return table


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", f"{value:.6g}" if isinstance(value, float) else str(value)


def file_table(record: ArtifactRecord, path: Path) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=str(path), title_justify="left")
    table.add_column("file")
    table.add_column("size", justify="right")
    table.add_column("sha256")
    for name, file in record.files.items():
        table.add_row(escape(name), bytes_text(file.size), file.sha256[:KEY_LENGTH])
    return table


def removed_table(removed: Sequence[Removed]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("what")
    table.add_column("name")
    table.add_column("size", justify="right")
    for entry in removed:
        table.add_row(entry.what, escape(entry.name), bytes_text(entry.bytes))
    return table


def benchmark_table(nodes: Sequence[NodeResult]) -> Table:
    """Every number measured by ``bench``: one line per figure, one column per drafter."""
    table = Table(box=None, pad_edge=False, header_style="dim", title="measured", title_justify="left")
    table.add_column("")
    columns: list[dict[str, str]] = []
    for node in nodes:
        table.add_column(escape(node.id), justify="right")
        columns.append(dict(flatten({n: v for n, v in node.metrics.items() if isinstance(v, Mapping | int | float)})))
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(escape(name), *(escape(column.get(name, "")) for column in columns))
    return table


def result_line(result: RunResult) -> str:
    """``full-pipeline: 3 made, 6 cached in 2 min 5 s``."""
    counts = Counter(node.status for node in result.nodes)
    parts = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing to do"
    return f"{result.flow}: {parts} in {duration_text(result.seconds)}"
