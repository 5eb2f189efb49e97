"""What the report across runs shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A drafter against plain decoding of the same run."""

    time: datetime
    drafter: str
    """Its name."""
    key: str
    tokens_per_second: float | None
    tau: float | None
    plain_tokens_per_second: float | None
    promoted: bool = False
    """Whether it was promoted upon this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Of all artifacts of a stage that a run reached."""

    stage: str
    made: int = 0
    reused: int = 0
    """Made for an earlier run."""
    seconds: float = 0.0
    bytes: int = 0
    """Both of what was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that came to a decision."""

    time: datetime
    service: str
    decision: Mapping[str, Any]
    """``decision.json``."""
    outcome: str
    """``promoted`` or ``kept``, as the registry has it."""
    reason: str
    costs: Sequence[StageCost] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDrafter:
    service: str
    key: str
    name: str
    state: str
    since: datetime
    reason: str
    tokens_per_second: float | None
    tau: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One artifact, or several of a stage, one per slice."""

    id: str
    stage: str
    label: str
    detail: str
    needs: Sequence[str] = ()
    main: bool = False
    """Drawn as what the graph is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """From the data to the export of a service's drafter. ``nodes``: each after those that it needs."""

    service: str
    note: str
    nodes: Sequence[GraphNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryData:
    title: str
    measurements: Sequence[Measurement] = ()
    drafters: Sequence[RegisteredDrafter] = ()
    runs: Sequence[Run] = ()
    """The oldest first."""
    lineages: Sequence[Lineage] = ()
    costs: Sequence[StageCost] = field(default=())
    """Of the whole store, by stage."""
