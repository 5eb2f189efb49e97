"""A YAML file as plain data that remembers the line and column of every key and value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specflow.config.errors import InputErrors, InputProblem, Location

KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """YAML's core types only: no dates, `6e-4` is a number, and `yes`, `on`, `no`, `off` are text."""


_BOOL, _INT, _FLOAT, _TIMESTAMP = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _INT, _FLOAT, _TIMESTAMP)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
# No leading zeros: whether 010 is ten or eight depends on who reads it.
_Loader.add_implicit_resolver(_INT, re.compile(r"^(?:[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


@dataclass(slots=True)
class Document:
    """Parsed YAML: ``data`` of plain values, and where each key (``keys``) and value (``values``) stands."""

    source: str
    data: Any
    keys: dict[KeyPath, Location] = field(default_factory=dict)
    values: dict[KeyPath, Location] = field(default_factory=dict)

    def key_location(self, path: KeyPath) -> Location:
        """Where the key at ``path`` is written; the nearest enclosing key if it is not written at all."""
        return self._nearest(self.keys, path)

    def value_location(self, path: KeyPath) -> Location:
        return self.values.get(path) or self.key_location(path)

    def _nearest(self, table: dict[KeyPath, Location], path: KeyPath) -> Location:
        for end in range(len(path), 0, -1):
            if path[:end] in table:
                return table[path[:end]]
        return Location(source=self.source, line=1, column=1)


class Dumper(yaml.SafeDumper):
    """Writes what ``parse_document`` reads back equal; short lists stay on one line."""


# Text is quoted if either reader, ours or that of YAML 1.1, would take it for something else.
Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *_Loader.yaml_implicit_resolvers.get(first, [])]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def _sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flat = not any(isinstance(item, dict | list) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


Dumper.add_representer(list, _sequence)


def parse_scalar(text: str) -> Any:
    """A YAML value written on the command line; raises ``yaml.YAMLError``."""
    return yaml.load(text, Loader=_Loader)


def read_document(path: Path) -> Document:
    """Read a YAML file; raises ``InputErrors`` if it is missing, empty, malformed, or repeats a key."""
    source = str(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise InputErrors(
            [InputProblem(location=Location(source=source), path="", message=what, expected="a YAML file")]
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputErrors([_whole(source, "the file is not UTF-8 text", found=str(error))]) from error
    return parse_document(text, source=source)


def parse_document(text: str, *, source: str) -> Document:
    """Parse YAML text; ``source`` names it in errors."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        document = Document(source=source, data=None)
        problems: list[InputProblem] = []
        if node is not None:
            document.data = _convert(node, (), document, problems, loader, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = _at(source, mark) if mark else Location(source=source)
        hint = "indent with spaces, not tabs" if "\\t" in str(error.problem) else ""
        message = f"not valid YAML: {error.problem or error.context}"
        raise InputErrors([InputProblem(location=location, path="", message=message, hint=hint)]) from error
    except yaml.YAMLError as error:
        raise InputErrors([_whole(source, f"not valid YAML: {error}")]) from error
    finally:
        loader.dispose()
    if document.data is None:
        problems.append(_whole(source, "the file is empty", expected="a mapping of keys to values"))
    elif not isinstance(document.data, dict):
        problems.append(_whole(source, "wrong type", found=type(document.data).__name__, expected="a mapping"))
    if problems:
        raise InputErrors(problems)
    return document


def _convert(
    node: yaml.Node,
    path: KeyPath,
    document: Document,
    problems: list[InputProblem],
    loader: _Loader,
    above: tuple[int, ...],
) -> Any:
    document.values[path] = _at(document.source, node.start_mark)
    if id(node) in above:
        problems.append(_problem(document.values[path], path, "an alias refers to the mapping it stands in"))
        return None
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, i), document, problems, loader, above) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node, deep=True)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        location = _at(document.source, key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(_problem(location, path, "a key must be a plain name"))
            continue
        key = str(key_node.value)
        if key in result:
            first = document.keys[(*path, key)].line
            problems.append(
                _problem(
                    location, (*path, key), "duplicate key", f"again on line {location.line}, first on line {first}"
                )
            )
            continue
        document.keys[(*path, key)] = location
        result[key] = _convert(value_node, (*path, key), document, problems, loader, above)
    return result


def dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _at(source: str, mark: Any) -> Location:
    return Location(source=source, line=mark.line + 1, column=mark.column + 1)


def _problem(location: Location, path: KeyPath, message: str, found: str = "") -> InputProblem:
    return InputProblem(location=location, path=dotted(path), message=message, found=found)


def _whole(source: str, message: str, *, found: str = "", expected: str = "") -> InputProblem:
    return InputProblem(
        location=Location(source=source, line=1), path="", message=message, found=found, expected=expected
    )
