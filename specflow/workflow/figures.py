"""Figures of a running stage: one line of text, or a panel on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.align import Align
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table


def figures_text(figures: Mapping[str, float]) -> str:
    """``loss 2.345, 3,120 tokens/s``: rates stand before their unit, other figures behind their name."""
    return ", ".join(
        f"{_shown(value)} {name}" if _is_rate(name) else f"{name} {_shown(value)}" for name, value in figures.items()
    )


def figures_panel(title: str, figures: Mapping[str, float], *, done: str, left: str) -> Panel:
    """The figures side by side, large first, with what is done and the time left. ``title`` is Rich markup."""
    shown = {**{name: _shown(value) for name, value in figures.items()}, "done": done, "left": left}
    table = Table.grid(padding=(0, 3), expand=False)
    for _ in shown:
        table.add_column(justify="center", no_wrap=True)
    table.add_row(*(f"[bold]{escape(value)}[/bold]" for value in shown.values()))
    table.add_row(*(f"[dim]{escape(name)}[/dim]" for name in shown))
    return Panel(Align.center(table), title=title, title_align="left", border_style="cyan")


def _is_rate(name: str) -> bool:
    return name.endswith("/s")


def _shown(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 100 else f"{value:.3f}"
