"""What a stage is: a pure function from artifacts and parameters to the payload of one artifact.

A stage module under ``specflow.stages`` defines

``NAME``     the stage's name in flows and on the command line,
``KIND``     the kind of the artifact it makes,
``INPUTS``   ``{kind: Arity}`` of the artifacts it reads,
``check``    problems that can be known before anything runs,
``files``    files outside the store whose content is part of the key,
``estimate`` expected size and duration, for ``specflow plan``,
``run``      the work; returns the metrics of the artifact.

Modules keep their top level light: torch and transformers are imported inside ``run``, so that
planning and cache hits cost no start-up time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

Metrics = Mapping[str, Any]
"""JSON values only: numbers, strings, lists and dicts of them."""


class Arity(Enum):
    """How many artifacts of a kind a stage reads."""

    ONE = "one"
    OPTIONAL = "optional"
    MANY = "many"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A committed, immutable directory in the artifact store."""

    kind: str
    key: str
    path: Path
    inputs: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    item: str | None = None
    """The drafter's name where the stage runs once per drafter."""

    def file(self, name: str) -> Path:
        """Path of a payload file; raises ``FileNotFoundError`` naming the artifact if absent."""
        path = self.path / name
        if not path.exists():
            raise FileNotFoundError(f"artifact {self.kind}/{self.key[:12]} has no file {name!r} ({path})")
        return path


@dataclass(frozen=True, slots=True)
class Inputs:
    """The artifacts a stage reads, by kind."""

    artifacts: tuple[Artifact, ...]

    def all(self, kind: str) -> tuple[Artifact, ...]:
        return tuple(a for a in self.artifacts if a.kind == kind)

    def optional(self, kind: str) -> Artifact | None:
        found = self.all(kind)
        return found[0] if found else None

    def one(self, kind: str) -> Artifact:
        found = self.all(kind)
        if len(found) != 1:
            raise LookupError(f"expected exactly one {kind!r} input, found {len(found)}")
        return found[0]


class Progress(Protocol):
    def advance(self, amount: float = 1) -> None: ...

    def describe(self, text: str) -> None:
        """Replace the trailing note of the bar (for example the current loss)."""
        ...

    def figures(self, values: Mapping[str, float]) -> None:
        """Replace the figures shown with the bar, by name, most important first (for example ``tokens/s``)."""
        ...


class Context(Protocol):
    """What a running stage may touch besides its inputs."""

    @property
    def key(self) -> str:
        """Of the artifact being made; names what a stage keeps outside the store."""
        ...

    @property
    def output(self) -> Path:
        """Empty directory that becomes the artifact when ``run`` returns."""
        ...

    @property
    def scratch(self) -> Path:
        """Directory of this artifact key that survives a kill; removed when the artifact commits.

        A stage that finds finished pieces here continues from them. Same file system as
        ``output``, so moving a file there is a rename.
        """
        ...

    @property
    def item(self) -> str | None:
        """The drafter's name where the stage runs once per drafter."""
        ...

    def log(self, message: str) -> None: ...

    def progress(self, description: str, *, total: float, unit: str = "rows") -> AbstractContextManager[Progress]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a stage is expected to cost; ``None`` where it cannot be known yet."""

    bytes: int | None = None
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with the configuration, found before anything runs."""

    where: str
    """Dotted path of the parameter, relative to the stage's section; empty for the section."""
    found: str
    expected: str
    hint: str = ""


class StageModule(Protocol):
    """The static type of a stage module.

    It may also have ``check_upstream(sections) -> Iterable[Problem]``: what is wrong with the sections of the stages
    that it depends on and its own (by the stage's name), each ``where`` from the root of the configuration.
    """

    NAME: str
    KIND: str
    INPUTS: Mapping[str, Arity]

    def check(self, params: Any) -> Iterable[Problem]: ...

    def files(self, params: Any) -> Iterable[Path]: ...

    def estimate(self, params: Any) -> Estimate: ...

    def run(self, inputs: Inputs, params: Any, context: Context) -> Metrics: ...


class StageError(Exception):
    """A failure the user can act on; shown without a traceback, exit code 1."""
