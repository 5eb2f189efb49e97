"""A flow and a configuration, read together so that the errors of both are shown at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from specflow.config import resources
from specflow.config.errors import InputErrors, InputProblem, Location
from specflow.config.loading import Loaded, load_config
from specflow.config.overrides import Override, parse_overrides
from specflow.config.root import Config
from specflow.workflow.flow import Flow, load_flow
from specflow.workflow.planning import Plan, plan
from specflow.workflow.store import ArtifactStore


@dataclass(frozen=True, slots=True)
class Work:
    """What a command works on."""

    flow: Flow
    loaded: Loaded

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore(self.loaded.config.store)

    def locate(self, path: str) -> Location:
        """Where a dotted path of the configuration is written."""
        return self.loaded.document.value_location(_key_path(path))

    def makes(self) -> tuple[tuple[str, str], ...]:
        """Kind and key of everything that the flow makes, also where a stage could not run with its parameters."""
        return plan(self.flow, self.loaded.config, self.store, locate=self.locate, verify=False, to_run=False).keys

    def plan(self, *, only: Collection[str] | None = None, upstream: bool = False, verify: bool = True) -> Plan:
        return plan(
            self.flow, self.loaded.config, self.store, locate=self.locate, only=only, upstream=upstream, verify=verify
        )


def open_work(
    flow: str, config: str, *, settings: Sequence[str] = (), store: Path | None = None, flags: Sequence[Override] = ()
) -> Work:
    """Read a flow and a configuration; raises ``InputErrors`` with the problems of both."""
    problems: list[InputProblem] = []
    overrides: list[Override] = []
    loaded: Loaded | None = None
    read: Flow | None = None
    try:
        read = load_flow(resources.find("flows", flow))
    except InputErrors as errors:
        problems += errors.problems
    try:
        overrides += parse_overrides(settings)
    except InputErrors as errors:
        problems += errors.problems
    overrides += flags
    if store is not None:
        overrides.append(Override(path=("store",), value=str(store), flag=f"--store {store}"))
    try:
        loaded = load_config(config, overrides)
    except InputErrors as errors:
        problems += errors.problems
    if problems or read is None or loaded is None:
        raise InputErrors(problems)
    return Work(read, loaded)


def open_store(config: str | None, store: Path | None) -> ArtifactStore:
    """The store given, else the configuration's, else the usual one."""
    if store is None:
        store = load_config(config).config.store if config is not None else Config.model_fields["store"].default
    return ArtifactStore(store)


def bad_input(source: str, message: str, expected: str, *, found: str = "") -> InputErrors:
    """One problem of something given on the command line, to be raised."""
    location = Location(source=source)
    return InputErrors([InputProblem(location=location, path="", message=message, expected=expected, found=found)])


def _key_path(path: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in path.split(".") if part)
