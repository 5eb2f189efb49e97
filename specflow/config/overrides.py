"""``--set a.b=c`` and the flags of stage commands: values from the command line on top of a file."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from specflow.config.document import Document, KeyPath, dotted, parse_scalar
from specflow.config.errors import InputErrors, InputProblem, Location, listing, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One value from the command line; ``flag`` is what the user typed, for errors. ``*`` in the path is every name."""

    path: KeyPath
    value: Any
    flag: str
    existing: int = 0
    """How many leading parts of ``path`` must be there already (a drafter that is named must exist)."""


def parse_override(text: str) -> Override:
    """``a.b.0=value`` with a YAML value; raises ``InputErrors``."""
    flag = f"--set {text}"
    name, equals, value = text.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        problem = InputProblem(
            location=Location(source=flag),
            path="",
            message="not an assignment",
            found=text,
            expected="name.of.key=value",
            hint="for example --set bench.repeats=2",
        )
        raise InputErrors([problem])
    path = tuple(int(part) if part.isdecimal() else part for part in parts)
    return Override(path=path, value=parse_value(value, flag=flag, path=path), flag=flag)


def parse_value(text: str, *, flag: str, path: KeyPath) -> Any:
    """A YAML value typed on the command line; raises ``InputErrors``."""
    try:
        return parse_scalar(text)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or str(error)
        problem = InputProblem(
            location=Location(source=flag),
            path=dotted(path),
            message=f"not a YAML value: {reason}",
            found=text,
            hint="quote the value twice, once for the shell and once for YAML",
        )
        raise InputErrors([problem]) from error


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """All ``--set`` values; every malformed one is reported."""
    parsed: list[Override] = []
    problems: list[InputProblem] = []
    for text in texts:
        try:
            parsed.append(parse_override(text))
        except InputErrors as errors:
            problems.extend(errors.problems)
    if problems:
        raise InputErrors(problems)
    return parsed


def apply_overrides(document: Document, overrides: Sequence[Override]) -> None:
    """Put the values into ``document``, in order; raises ``InputErrors`` where a path leads through a value."""
    problems: list[InputProblem] = []
    for override in overrides:
        location = Location(source=override.flag)
        for path in _paths(document.data, override.path):
            problem = _absent(document, path[: override.existing], location) or _assign(
                document, path, override.value, location
            )
            if problem:
                problems.append(problem)
    if problems:
        raise InputErrors(problems)


def _absent(document: Document, path: KeyPath, location: Location) -> InputProblem | None:
    holder: Any = document.data
    for depth, part in enumerate(path):
        if isinstance(holder, dict) and part not in holder:
            names = [str(name) for name in holder]
            return InputProblem(
                location=location,
                path=dotted(path[: depth + 1]),
                message="no such name",
                found=str(part),
                expected="one of " + listing(names),
                hint=nearest(str(part), names),
            )
        holder = holder[part] if isinstance(holder, dict) else None
    return None


def _paths(data: Any, pattern: KeyPath) -> list[KeyPath]:
    """The paths that a pattern stands for: ``*`` is every name of a mapping or every index of a list."""
    if "*" not in pattern:
        return [pattern]
    position = pattern.index("*")
    for part in pattern[:position]:
        inside = isinstance(data, dict) and part in data
        inside = inside or (isinstance(data, list) and isinstance(part, int) and part < len(data))
        if not inside:
            return []
        data = data[part]
    names: list[str | int] = list(data) if isinstance(data, dict) else []
    names = list(range(len(data))) if isinstance(data, list) else names
    below = pattern[position + 1 :]
    return [(*pattern[:position], name, *rest) for name in names for rest in _paths(data[name], below)]


def _assign(document: Document, target: KeyPath, value: Any, location: Location) -> InputProblem | None:
    holder: Any = document.data
    path: KeyPath = ()
    for part in target:
        # A name that is all digits is an index in a list and a key in a mapping.
        step = str(part) if isinstance(holder, dict) else part
        above, path = path, (*path, step)
        problem = _cannot_enter(holder, step, path, above, location)
        if problem:
            return problem
        if len(path) == len(target):
            holder[step] = copy.deepcopy(value)
            _relocate(document, path, location)
            return None
        if isinstance(holder, dict) and holder.get(step) is None:
            holder[step] = {}
            document.keys[path] = document.values[path] = location
        holder = holder[step]
    return None


def _cannot_enter(
    holder: Any, step: str | int, path: KeyPath, above: KeyPath, location: Location
) -> InputProblem | None:
    if isinstance(holder, dict):
        return None
    if not isinstance(holder, list):
        message, found, expected = f"`{dotted(above)}` is a value, not a section", repr(holder), ""
    elif not isinstance(step, int) or step >= len(holder):
        message, found = "no such entry of the list", str(step)
        expected = f"an index from 0 to {len(holder) - 1}" if holder else "nothing: the list is empty"
    else:
        return None
    return InputProblem(location=location, path=dotted(path), message=message, found=found, expected=expected)


def _relocate(document: Document, path: KeyPath, location: Location) -> None:
    """Errors in the new value are the flag's, not the file's."""
    for table in (document.keys, document.values):
        for below in [key for key in table if key[: len(path)] == path]:
            del table[below]
        table[path] = location
