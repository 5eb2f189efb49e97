"""A flow on a configuration: the nodes that run, checked before anything does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from specflow.config.document import Document
from specflow.config.errors import InputErrors, InputProblem, Location, listing, nearest
from specflow.stages.contract import Arity
from specflow.workflow.flow import Flow, FlowStage
from specflow.workflow.registry import STAGES, Registry

Locate = Callable[[str], Location]
"""Where a dotted path of the configuration is written."""


def unlocated(path: str) -> Location:
    """For a configuration that was not read from a file."""
    return Location(source="configuration")


def locate_in(document: Document) -> Locate:
    """For a configuration read from ``document``."""

    def locate(path: str) -> Location:
        return document.value_location(tuple(int(part) if part.isdigit() else part for part in path.split(".")))

    return locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One run of one stage. ``id`` is the entry's id, with ``:item`` where it runs once per item."""

    id: str
    entry: str
    stage: str
    kind: str
    item: str | None
    params: BaseModel
    section: str
    """Dotted path of ``params`` in the configuration."""
    needs: tuple[str, ...]
    """Ids of the nodes whose artifacts are the inputs."""


class UnknownPath(LookupError):
    """A dotted path that the configuration does not have."""

    def __init__(self, path: str, name: str, valid: Sequence[str]) -> None:
        super().__init__(path)
        self.path, self.name, self.valid = path, name, valid


def look_up(config: BaseModel, path: str) -> Any:
    """The value at a dotted path; raises ``UnknownPath``."""
    value: Any = config
    for name in path.split("."):
        if isinstance(value, BaseModel):
            valid = tuple(type(value).model_fields)
            found = name in valid
            value = getattr(value, name) if found else None
        elif isinstance(value, Mapping):
            valid, found = tuple(map(str, value)), name in value
            value = value.get(name)
        else:
            valid, found = (), False
        if not found:
            raise UnknownPath(path, name, valid)
    return value


def expand(
    flow: Flow, config: BaseModel, *, registry: Registry = STAGES, locate: Locate = unlocated, to_run: bool = True
) -> tuple[Node, ...]:
    """Nodes in an order they can run in. Raises ``InputErrors`` with everything wrong in flow and configuration.

    ``to_run`` false: only their keys are wanted, so that stages need not find their parameters complete.
    """
    expansion = _Expansion(flow, config, registry)
    nodes = expansion.nodes()
    problems = [*expansion.problems, *check_stages(nodes, registry=registry, locate=locate, to_run=to_run)]
    if problems:
        raise InputErrors(problems)
    return nodes


def check_stages(
    nodes: Sequence[Node], *, registry: Registry, locate: Locate, to_run: bool = True
) -> list[InputProblem]:
    """What the stages find wrong with their parameters, and files they would read that do not exist."""
    problems = []
    for node in {(node.stage, node.section): node for node in nodes}.values():
        module = registry.load(node.stage)
        found = [
            InputProblem(
                location=locate(f"{node.section}.{problem.where}" if problem.where else node.section),
                path=f"{node.section}.{problem.where}" if problem.where else node.section,
                message=f"stage {node.stage!r} cannot run with this",
                found=problem.found,
                expected=problem.expected,
                hint=problem.hint,
            )
            for problem in (module.check(node.params) if to_run else ())
        ]
        if not found:
            found = [
                InputProblem(location=locate(node.section), path=node.section, message="missing file", found=str(path))
                for path in module.files(node.params)
                if not path.exists()
            ]
        problems += found
    return problems


class _Expansion:
    def __init__(self, flow: Flow, config: BaseModel, registry: Registry) -> None:
        self.problems: list[InputProblem] = []
        self._flow, self._config, self._registry = flow, config, registry
        self._items = {name: self._items_of(name, entry) for name, entry in flow.stages.items()}
        self._on = {name: self._is_on(name, entry) for name, entry in flow.stages.items()}

    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            node
            for name in self._flow.order()
            if self._on[name]
            for node in self._nodes_of(name, self._flow.stages[name])
        )

    def _nodes_of(self, name: str, entry: FlowStage) -> list[Node]:
        module = self._registry.load(entry.stage)
        nodes = []
        for item in self._items[name]:
            section = self._section(name, entry, item)
            if section is None:
                continue
            path, params = section
            nodes.append(
                Node(
                    id=_node_id(name, item),
                    entry=name,
                    stage=entry.stage,
                    kind=module.KIND,
                    item=item,
                    params=params,
                    section=path,
                    needs=self._needs(name, entry, item),
                )
            )
        return nodes

    def _section(self, name: str, entry: FlowStage, item: str | None) -> tuple[str, BaseModel] | None:
        """The section named like the stage; or the item of the mapping, if there is none or the item is of its type."""
        path = entry.stage
        params = getattr(self._config, path) if path in type(self._config).model_fields else None
        if entry.foreach and item is not None:
            own = look_up(self._config, entry.foreach)[item]
            if params is None or isinstance(own, type(params)):
                path, params = f"{entry.foreach}.{item}", own
        if isinstance(params, BaseModel):
            return path, params
        self._report((name, "stage"), f"the configuration has no section {path!r} for stage {entry.stage!r}")
        return None

    def _needs(self, name: str, entry: FlowStage, item: str | None) -> tuple[str, ...]:
        wanted = self._registry.load(entry.stage).INPUTS
        ids: list[str] = []
        for position, need in enumerate(entry.needs):
            other = self._flow.stages[need]
            kind = self._registry.load(other.stage).KIND
            same = other.foreach is not None and other.foreach == entry.foreach
            items = [item] if same else self._items[need]
            if wanted[kind] is Arity.ONE and not self._on[need]:
                self._report(
                    (name, "needs", position), f"{need!r} is switched off by `when: {other.when}`", expected=kind
                )
            elif wanted[kind] is not Arity.MANY and len(items) != 1:
                self._report(
                    (name, "needs", position),
                    f"stage {entry.stage!r} reads one {kind!r}, and {need!r} makes one per item of `{other.foreach}`",
                    found=listing(str(i) for i in items) or "no items",
                    hint=f"add `foreach: {other.foreach}`",
                )
            elif self._on[need]:
                ids += [_node_id(need, i) for i in items]
        return tuple(ids)

    def _items_of(self, name: str, entry: FlowStage) -> list[str | None]:
        if entry.foreach is None:
            return [None]
        mapping = self._value((name, "foreach"), entry.foreach)
        if isinstance(mapping, Mapping):
            return list(mapping)
        if mapping is not None:
            found = type(mapping).__name__
            self._report((name, "foreach"), f"`{entry.foreach}` is not a mapping", found=found, expected="a mapping")
        return []

    def _is_on(self, name: str, entry: FlowStage) -> bool:
        if entry.when is None:
            return True
        negated = entry.when.startswith("not ")
        value = self._value((name, "when"), entry.when.removeprefix("not ").strip())
        return bool(value) != negated

    def _value(self, where: tuple[str | int, ...], path: str) -> Any:
        try:
            return look_up(self._config, path)
        except UnknownPath as error:
            self._report(
                where,
                "the configuration has no such path",
                found=path,
                expected=listing(error.valid),
                hint=nearest(error.name, error.valid),
            )
            return None

    def _report(self, path: tuple[str | int, ...], message: str, **details: str) -> None:
        location = self._flow.document.value_location(("stages", *path))
        dotted = ".".join(["stages", *map(str, path)])
        problem = InputProblem(location=location, path=dotted, message=message, **details)
        if problem not in self.problems:
            self.problems.append(problem)


def _node_id(name: str, item: str | None) -> str:
    return name if item is None else f"{name}:{item}"
