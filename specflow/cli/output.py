"""What the commands print with: a console that is plain where there is no terminal, and JSON."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console

PLAIN_WIDTH = 160


def console(*, stderr: bool = False) -> Console:
    """A console for standard output (or standard error); without colours and cursor movement if it is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, no_color=True, force_terminal=False, width=PLAIN_WIDTH)


def print_json(data: Any) -> None:
    """One JSON document on standard output; NaN and infinity become null."""
    json.dump(_finite(data), sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def print_json_line(data: Any) -> None:
    """The same on one line, seen at once by whoever reads along."""
    sys.stdout.write(json.dumps(_finite(data), ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): _finite(child) for name, child in value.items()}
    return [_finite(child) for child in value] if isinstance(value, list | tuple) else value


def bytes_text(count: float | None) -> str:
    """``1.5 GB``; a dash for an unknown size."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration_text(seconds: float | None) -> str:
    """``45 s``, ``3 min 20 s`` or ``2 h 5 min``; a dash for an unknown duration."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
