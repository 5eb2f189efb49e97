"""What artifacts say of a drafter under load: rounds, the time beside the target's pass, the cost of plain decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.costs.drafting import DraftCost
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.simulation.costs import RoundCost
from specflow.simulation.load import Load
from specflow.simulation.policy import Policy
from specflow.simulation.predict import Evidence, predict
from specflow.simulation.traces import read_benchmark_rounds, read_record_rounds, traces_of

DRAFTING = ("draft_seconds", "state_seconds")
BESIDE = ("other_seconds",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Directories of artifacts of one drafter; at least one of the two."""

    name: str
    benchmark: Path | None
    calibration: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    evidence: Evidence
    notes: tuple[str, ...]
    """What a reader of the prediction must know."""


def gather(sources: Sources, table: RowTable | AdditiveTable) -> Found:
    """Raises ``ValueError`` where the artifacts hold no rounds."""
    bench = None if sources.benchmark is None else _Benchmark(sources.benchmark)
    if bench is not None and bench.scheduled:
        bench = None  # its rounds were cut, and it drafted only where that paid
    temperatures, recorded = _calibration(sources.calibration)
    rounds = bench.rounds if bench else recorded
    if bench and recorded and not bench.confident:
        rounds = recorded  # of a benchmark made before rounds kept their confidence
    traces = traces_of(rounds, temperatures=temperatures)
    beside = bench.seconds_of(BESIDE) if bench else 0.0
    drafting = DraftCost(per_request=bench.seconds_of(DRAFTING) if bench else 0.0)
    evidence = Evidence(
        name=sources.name,
        traces=traces,
        cost=RoundCost(table=table, seconds_per_request=beside, drafting=drafting),
        plain=RoundCost(table=table, seconds_per_request=bench.plain_beside(table) if bench else 0.0),
        prefill_seconds=bench.prefill_seconds if bench else 0.0,
    )
    return Found(evidence=evidence, notes=tuple(_notes(evidence, bench, calibrated=temperatures is not None)))


class _Benchmark:
    def __init__(self, path: Path) -> None:
        self.result: dict[str, Any] = json.loads((path / "result.json").read_text(encoding="utf-8"))
        self.rounds = read_benchmark_rounds(path / "rounds.jsonl")
        self._all = [r for request in self.rounds for r in request]

    @property
    def scheduled(self) -> bool:
        return any(r.get("verified") is not None for r in self._all)

    @property
    def confident(self) -> bool:
        return bool(self._all) and all(r.get("confidence") is not None for r in self._all)

    def seconds_of(self, parts: Sequence[str]) -> float:
        """Of a round, per request."""
        return sum(sum(float(r[part]) for part in parts) for r in self._all) / max(len(self._all), 1)

    def plain_beside(self, table: RowTable | AdditiveTable) -> float:
        """Of a step of plain decoding, per request: what it took less the pass itself."""
        rate = self.result["total"]["plain"]["tokens_per_second"]
        return max(0.0, 1.0 / rate - float(table.seconds(1, 1))) if rate else 0.0

    @property
    def prefill_seconds(self) -> float:
        decoded = self.result["dataset"]["prompts"] * self.result["dataset"]["repeats"]
        return float(self.result["total"]["plain"]["prefill_seconds"] / max(decoded, 1))

    @property
    def measured(self) -> float | None:
        """Tokens per second at concurrency 1, prefill not counted."""
        value = self.result["total"]["speculative"]["tokens_per_second"]
        return None if value is None else float(value)


def _calibration(path: Path | None) -> tuple[Sequence[float] | None, list[list[dict[str, Any]]]]:
    """Temperatures and rounds; nothing of an empty calibration."""
    if path is None or not (path / "sts.json").exists():
        return None, []
    from specflow.calibration.sglang_sts import read_sts

    return read_sts(path / "sts.json").temperatures, read_record_rounds(path / "records.jsonl")


def _notes(evidence: Evidence, bench: _Benchmark | None, *, calibrated: bool) -> list[str]:
    name, notes = evidence.name, []
    if bench is None:
        notes.append(f"{name}: no benchmark, so drafting, bookkeeping and prefill are taken to cost nothing")
    elif bench.measured:
        full = Policy(kind="fixed", length=evidence.traces.num_proposals)
        without_prefill = Evidence(
            name=name, traces=evidence.traces, cost=evidence.cost, plain=evidence.plain, prefill_seconds=0.0
        )
        predicted = predict(without_prefill, full, Load(concurrency=1)).tokens_per_second
        notes.append(
            f"{name}: one request at a time, {predicted:.1f} tokens/s predicted, {bench.measured:.1f} measured by the "
            f"benchmark ({predicted / bench.measured - 1.0:+.1%})"
        )
    if evidence.traces.survival_NM is None:
        notes.append(f"{name}: no confidence, so a scheduler has nothing to go by")
    elif not calibrated:
        notes.append(f"{name}: its confidence is not calibrated (`specflow calibrate`)")
    return notes


def conditions_of(record: Mapping[str, Any]) -> str:
    """On what a cost table was measured, in a line."""
    engine, hardware = record["conditions"]["engine"], record["conditions"]["hardware"]
    return (
        f"{engine['name']} engine, {engine['precision']}, {engine['threads']} threads, {hardware['cpu']}, "
        f"{record['conditions']['context']} positions of context"
    )
