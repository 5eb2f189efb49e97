"""What the report shows, gathered from artifacts into plain values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specflow.reporting.curves import Curves, read_curves

SHARE_BINS = 10
SHORTEST_BIN = 16
"""Documents below this many tokens are one bin; each further bin is twice as wide."""


class Made(Protocol):
    """The part of an artifact that the report reads."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def inputs(self) -> Mapping[str, str]: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def metrics(self) -> Mapping[str, Any]: ...
    @property
    def item(self) -> str | None: ...


class TokenDocument(Protocol):
    """The part of a tokenised document that the report reads."""

    @property
    def split(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def supervised(self) -> Sequence[bool]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterResult:
    """Everything known about one drafter."""

    name: str
    manifest: Mapping[str, Any] = field(default_factory=dict)
    curves: Curves = field(default_factory=Curves)
    benchmark: Mapping[str, Any] | None = None
    """``result.json``."""
    verification: Mapping[str, Any] | None = None
    """``verification.json``."""
    served: Mapping[str, Any] | None = None
    """``load.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Counts of the data, by split and kind."""

    rows: Sequence[Mapping[str, Any]] = ()
    """``split, kind, documents, tokens, supervised, longest``."""
    share_counts: Sequence[int] = ()
    """Documents by supervised share, ``SHARE_BINS`` equal bins of [0, 1]."""
    length_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By split, documents by length: below 16 tokens, then 16 to 31, 32 to 63 and so on."""
    set_aside: Sequence[Mapping[str, Any]] = ()
    """``made, reason, rows, of, example``: rows set aside, the most frequent reason of a kind of artifact first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    title: str
    drafters: Sequence[DrafterResult]
    corpus: Corpus
    features: Mapping[str, Any]
    """Metrics of the capture."""
    lineage: Sequence[Mapping[str, Any]]
    comparison: Mapping[str, Any] | None = None
    """``comparison.json``."""
    """``kind, item, key, inputs, parameters`` of each artifact."""


def gather(
    *,
    title: str,
    drafters: Sequence[Made],
    verifications: Sequence[Made],
    benchmarks: Sequence[Made],
    data: Sequence[Made],
    documents: Iterable[TokenDocument],
    comparison: Made | None = None,
    loads: Sequence[Made] = (),
) -> ReportData:
    """Join artifacts by drafter key. ``data``: features, tokens and conversations, in any order."""
    return ReportData(
        title=title,
        drafters=[_drafter(made, verifications, benchmarks, loads) for made in sorted(drafters, key=_name)],
        corpus=_corpus(documents, data),
        comparison=_json(comparison.path / "comparison.json") if comparison else None,
        features=next((dict(a.metrics) for a in data if a.kind == "features"), {}),
        lineage=[
            {
                "kind": a.kind,
                "item": a.item or "",
                "key": a.key,
                "inputs": dict(a.inputs),
                "parameters": dict(a.parameters),
            }
            for a in (
                *data,
                *sorted((*drafters, *verifications, *benchmarks, *loads), key=lambda a: (_name(a), a.kind)),
            )
        ],
    )


def _drafter(
    made: Made, verifications: Sequence[Made], benchmarks: Sequence[Made], loads: Sequence[Made]
) -> DrafterResult:
    verification = next((a for a in verifications if made.key in _keys(a)), None)
    benchmark = next((a for a in benchmarks if made.key in _keys(a)), None)
    load = next((a for a in loads if made.key in _keys(a)), None)
    return DrafterResult(
        name=_name(made),
        manifest=_json(made.path / "drafter" / "manifest.json") or {},
        curves=read_curves(made.path / "metrics.jsonl") if (made.path / "metrics.jsonl").exists() else Curves(),
        benchmark=_json(benchmark.path / "result.json") if benchmark else None,
        verification=_json(verification.path / "verification.json") if verification else None,
        served=_json(load.path / "load.json") if load else None,
    )


def _keys(made: Made) -> set[str]:
    """Keys of its inputs: some stores map kind to key, others key to kind."""
    return {*made.inputs.values(), *made.inputs.keys()}


def _corpus(documents: Iterable[TokenDocument], data: Sequence[Made]) -> Corpus:
    groups: dict[tuple[str, str], Counter[str]] = {}
    bins = [0] * SHARE_BINS
    lengths: dict[str, Counter[int]] = {}
    for document in documents:
        length, supervised = len(document.ids), sum(bool(s) for s in document.supervised)
        group = groups.setdefault((document.split, document.kind), Counter())
        group.update(documents=1, tokens=length, supervised=supervised)
        group["longest"] = max(group["longest"], length)
        lengths.setdefault(document.split, Counter())[_length_bin(length)] += 1
        bins[min(int(SHARE_BINS * supervised / max(length, 1)), SHARE_BINS - 1)] += 1
    order = sorted(groups, key=lambda g: (g[0] != "train", g))
    return Corpus(
        rows=[{"split": split, "kind": kind, **groups[split, kind]} for split, kind in order],
        share_counts=bins,
        length_counts=_by_length(lengths),
        set_aside=[row for made in data for row in _set_aside(made)],
    )


def _length_bin(length: int) -> int:
    return max(0, (length // SHORTEST_BIN).bit_length())


def _by_length(lengths: Mapping[str, Counter[int]]) -> dict[str, list[int]]:
    """The same bins for every split, training first."""
    count = 1 + max((bin for counts in lengths.values() for bin in counts), default=-1)
    return {s: [lengths[s][i] for i in range(count)] for s in sorted(lengths, key=lambda s: (s != "train", s))}


def _set_aside(made: Made) -> list[dict[str, Any]]:
    path = made.path / "quarantine.jsonl"
    if not path.exists():
        return []
    found: Counter[str] = Counter()
    examples: dict[str, str] = {}
    with path.open(encoding="utf-8", newline="\n") as file:  # texts may hold other line separators
        for line in file:
            if line.strip():
                row = json.loads(line)
                reason = str(row.get("reason") or "unknown")
                found[reason] += 1
                place = f"{row.get('source', '')}:{row.get('row', '')}".strip(":")
                examples.setdefault(reason, f"{place} {row.get('detail') or ''}".strip())
    of = made.metrics.get("prompts", made.metrics.get("rows"))
    if made.kind == "features" and "documents" in made.metrics:
        of = made.metrics["documents"] + made.metrics.get("quarantined", 0)
    return [
        {"made": made.kind, "reason": reason, "rows": rows, "of": of, "example": examples[reason]}
        for reason, rows in sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    ]


def _name(made: Made) -> str:
    return made.item or made.key[:12]


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
