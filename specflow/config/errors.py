"""Everything wrong with the user's input, shown together: file, line, found, expected, nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in a file (1-based line and column), or the command-line flag a value came from."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProblem:
    """One thing wrong with a file or a flag."""

    location: Location
    path: str
    """Dotted path of the key, for example ``regenerate.train.0.path``; empty for the whole file."""
    message: str
    found: str = ""
    expected: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.location}: {self.path}: " if self.path else f"{self.location}: "
        details = (("found", self.found), ("expected", self.expected), ("hint", self.hint))
        return "\n".join([where + self.message, *(f"    {name:<9} {text}" for name, text in details if text)])

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.location.source,
            "line": self.location.line,
            "column": self.location.column,
            "path": self.path,
            "message": self.message,
            "found": self.found,
            "expected": self.expected,
            "hint": self.hint,
        }


class InputErrors(Exception):
    """The user's input is wrong; all problems at once. The command line exits with code 2."""

    def __init__(self, problems: Sequence[InputProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint with the valid name closest to ``name``; empty if none is close."""
    by_folded = {candidate.casefold().replace("-", "_"): candidate for candidate in valid}
    close = difflib.get_close_matches(name.casefold().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return f"did you mean `{by_folded[close[0]]}`?" if close else ""


def listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
