"""The lineage as a drawing: boxes in columns, from what is made first to what is made last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from specflow.reporting.history.data import GraphNode

WIDTH, HEIGHT, GAP_X, GAP_Y = 150, 46, 34, 14


def lineage_svg(nodes: Sequence[GraphNode]) -> str:
    """An SVG element. A node stands one column behind the last of those it needs."""
    places = _places(nodes)
    columns = 1 + max((column for column, _ in places.values()), default=0)
    rows = 1 + max((row for _, row in places.values()), default=0)
    width, height = columns * (WIDTH + GAP_X) - GAP_X + 2, rows * (HEIGHT + GAP_Y) - GAP_Y + 2
    edges = [_edge(places[need], places[node.id]) for node in nodes for need in node.needs if need in places]
    boxes = [_box(node, places[node.id]) for node in nodes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="-1 -1 {width} {height}" '
        f'role="img" aria-label="lineage">{"".join(edges)}{"".join(boxes)}</svg>'
    )


def _places(nodes: Sequence[GraphNode]) -> dict[str, tuple[int, int]]:
    """Column and row of each node."""
    columns: dict[str, int] = {}
    for node in nodes:
        columns[node.id] = 1 + max((columns[need] for need in node.needs if need in columns), default=-1)
    taken: dict[int, int] = {}
    found = {}
    for node in nodes:
        column = columns[node.id]
        found[node.id] = (column, taken.get(column, 0))
        taken[column] = taken.get(column, 0) + 1
    return found


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return place[0] * (WIDTH + GAP_X), place[1] * (HEIGHT + GAP_Y)


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = _corner(start)
    x2, y2 = _corner(end)
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    middle = (x1 + x2) // 2
    return f'<path d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"/>'


def _box(node: GraphNode, place: tuple[int, int]) -> str:
    x, y = _corner(place)
    attributes: Mapping[str, str] = {"class": "main"} if node.main else {}
    group = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return (
        f"<g{group}><title>{escape(f'{node.stage}: {node.label}, {node.detail}')}</title>"
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        f'<text x="{x + 10}" y="{y + 19}">{escape(node.label)}</text>'
        f'<text class="small" x="{x + 10}" y="{y + 36}">{escape(node.detail)}</text></g>'
    )
