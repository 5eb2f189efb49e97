"""Numbers and tables as people read them."""

from __future__ import annotations

import re
from typing import Any

NONE = "–"
_HASH = re.compile(r"[0-9a-f]{64}")


def number(value: float | int | None, digits: int = 2) -> str:
    """``1234.5678`` -> ``1,234.57``; none and NaN become a dash."""
    if value is None or value != value:
        return NONE
    return f"{value:,.{digits}f}"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def times(value: float | None) -> str:
    return NONE if value is None else f"{number(value)}×"


def interval(low: float | None, high: float | None) -> str:
    return NONE if low is None or high is None else f"{number(low)} – {number(high)}"


def percent(value: float | None, digits: int = 0) -> str:
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def milliseconds(value: float | None) -> str:
    return NONE if value is None else number(1000 * value, 1)


def compact(value: Any) -> str:
    """A JSON value in one short line; a sha256 is cut to 12 digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_nested(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_nested(v) for v in value) + "]"
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:12]
    return NONE if value is None else str(value)


def _nested(value: Any) -> str:
    return f"({compact(value)})" if isinstance(value, dict) else compact(value)
