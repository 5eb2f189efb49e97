"""The outcome of one verification: what was compared, the numbers, and whether they suffice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TABLES = ("tests",)
"""Numbers that are a table of their own, too long for a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    what: str
    """The claim, as one sentence."""
    passed: bool
    numbers: Mapping[str, Any]
    limit: str
    """What the numbers had to be."""
    failures: Sequence[str] = ()
    """The first things found wrong."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        state = "passed" if self.passed else "FAILED"
        shown = {k: v for k, v in self.numbers.items() if k not in TABLES}
        numbers = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())
        lines = [f"{state}: {self.what} ({numbers}; needed: {self.limit})", *(f"    {f}" for f in self.failures)]
        return "\n".join(lines)
