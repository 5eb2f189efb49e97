"""Flows: which stages run, on what they depend, and for which drafters. Read from YAML and checked whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from specflow.config.document import Document, dotted, read_document
from specflow.config.errors import InputErrors, InputProblem, listing, nearest
from specflow.config.validation import validate
from specflow.stages.contract import Arity
from specflow.workflow.registry import STAGES, Registry


class FlowStage(BaseModel):
    """One entry of ``stages``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str = Field(description="Name of the stage.")
    needs: tuple[str, ...] = Field(default=(), description="Entries whose artifacts are the inputs, matched by kind.")
    foreach: str | None = Field(
        default=None, description="Dotted path of a mapping in the configuration; the stage runs once per item."
    )
    when: str | None = Field(
        default=None, description="Dotted path in the configuration that must be true, `not ` before it reverses."
    )


class Flow(BaseModel):
    """A workflow graph. Entries are in the order of the file, which need not be the order they run in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = ""
    stages: dict[str, FlowStage] = Field(min_length=1)
    _document: Document | None = PrivateAttr(default=None)

    @property
    def document(self) -> Document:
        """Where everything is written; an empty document for a flow that was not read from a file."""
        return self._document or Document(source=self.name, data={})

    def order(self) -> tuple[str, ...]:
        """Entry ids, each after all it needs; by position in the file where the graph leaves a choice."""
        done: list[str] = []
        waiting = list(self.stages)
        while waiting:
            ready = next((i for i in waiting if all(n in done for n in self.stages[i].needs)), None)
            if ready is None:
                raise ValueError(f"flow {self.name!r} has a cycle among {listing(waiting)}")
            done.append(ready)
            waiting.remove(ready)
        return tuple(done)


def load_flow(path: Path, *, registry: Registry = STAGES) -> Flow:
    """Read and check a flow; raises ``InputErrors`` with everything that is wrong in the file."""
    return parse_flow(read_document(path), registry=registry)


def parse_flow(document: Document, *, registry: Registry = STAGES) -> Flow:
    """As ``load_flow``, from a document already read."""
    problems: list[InputProblem] = []
    try:
        flow = validate(Flow, document)
    except InputErrors as errors:
        problems += errors.problems
    # The graph is made of the entries that are right, so that one bad entry does not hide what else is wrong.
    graph = _GraphCheck(_valid_entries(document), document, registry)
    problems += [*graph.unknown_stages(), *graph.unknown_needs(), *graph.cycles(), *graph.kinds()]
    if problems:
        raise InputErrors(sorted(problems, key=lambda p: (p.location.line or 0, p.location.column or 0)))
    flow._document = document
    return flow


def _valid_entries(document: Document) -> dict[str, FlowStage]:
    entries = document.data.get("stages")
    valid = {}
    for name, entry in entries.items() if isinstance(entries, Mapping) else ():
        with suppress(ValidationError):
            valid[name] = FlowStage.model_validate(entry)
    return valid


class _GraphCheck:
    """What can be wrong with a graph, whatever the configuration."""

    def __init__(self, stages: Mapping[str, FlowStage], document: Document, registry: Registry) -> None:
        self._stages, self._document, self._registry = stages, document, registry
        declared = document.data.get("stages")
        self._declared = tuple(declared) if isinstance(declared, Mapping) else ()

    def unknown_stages(self) -> Iterator[InputProblem]:
        for name, entry in self._stages.items():
            if entry.stage not in self._registry.names:
                yield self._at(
                    (name, "stage"),
                    "unknown stage",
                    found=entry.stage,
                    expected=listing(self._registry.names),
                    hint=nearest(entry.stage, self._registry.names),
                )

    def unknown_needs(self) -> Iterator[InputProblem]:
        for name, entry in self._stages.items():
            for position, need in enumerate(entry.needs):
                where = (name, "needs", position)
                if need not in self._declared:
                    hint = nearest(need, self._declared)
                    yield self._at(where, "unknown entry", found=need, expected=listing(self._declared), hint=hint)
                elif need in entry.needs[:position]:
                    yield self._at(where, "named twice", found=need)

    def cycles(self) -> Iterator[InputProblem]:
        finished: set[str] = set()

        def walk(name: str, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            if name in above:
                yield (*above[above.index(name) :], name)
            elif name in self._stages and name not in finished:
                for need in self._stages[name].needs:
                    yield from walk(need, (*above, name))
                finished.add(name)

        for name in self._stages:
            for cycle in walk(name, ()):
                yield self._at(
                    (cycle[0], "needs"),
                    "the flow has a cycle",
                    found=" needs ".join(cycle),
                    hint="remove one of these needs",
                )

    def kinds(self) -> Iterator[InputProblem]:
        for name, entry in self._stages.items():
            if entry.stage not in self._registry.names:
                continue
            wanted = self._registry.load(entry.stage).INPUTS
            supplied: dict[str, list[str]] = {}
            for need in dict.fromkeys(entry.needs):
                kind = self._kind(need)
                if kind is not None:
                    supplied.setdefault(kind, []).append(need)
            complete = all(self._kind(need) is not None for need in entry.needs)
            yield from self._misfits(name, entry.stage, wanted, supplied)
            if complete:
                yield from self._missing(name, entry.stage, wanted, supplied)

    def _misfits(
        self, name: str, stage: str, wanted: Mapping[str, Arity], supplied: Mapping[str, list[str]]
    ) -> Iterator[InputProblem]:
        for kind, needs in supplied.items():
            if kind not in wanted:
                yield self._at(
                    (name, "needs"),
                    f"`{needs[0]}` makes {kind!r}, which stage {stage!r} does not read",
                    found=kind,
                    expected=listing(wanted) or "no inputs",
                )
            elif len(needs) > 1 and wanted[kind] is not Arity.MANY:
                yield self._at(
                    (name, "needs"), f"more than one entry makes {kind!r}", found=listing(needs), expected="one of them"
                )

    def _missing(
        self, name: str, stage: str, wanted: Mapping[str, Arity], supplied: Mapping[str, list[str]]
    ) -> Iterator[InputProblem]:
        for kind, arity in wanted.items():
            if arity is Arity.ONE and kind not in supplied:
                makers = [other for other in self._stages if other != name and self._kind(other) == kind]
                yield self._at(
                    (name, "needs"),
                    f"stage {stage!r} reads {kind!r}, which no entry in `needs` makes",
                    found=listing(supplied) or "no inputs",
                    expected=kind,
                    hint=f"add `{makers[0]}` to `needs`" if makers else f"add an entry whose stage makes {kind!r}",
                )

    def _kind(self, name: str) -> str | None:
        entry = self._stages.get(name)
        return self._registry.load(entry.stage).KIND if entry and entry.stage in self._registry.names else None

    def _at(self, path: tuple[Any, ...], message: str, **details: str) -> InputProblem:
        location = self._document.value_location(("stages", *path))
        return InputProblem(location=location, path=dotted(("stages", *path)), message=message, **details)
