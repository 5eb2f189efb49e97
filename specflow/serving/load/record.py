"""The record of a server's benchmark, from its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specflow.config.load import LoadShape
from specflow.config.load_result import CellRecord, Side
from specflow.decoding.metrics import TAU_CONVENTION
from specflow.serving.load.cells import Cell
from specflow.serving.load.figures import DRAFTER, PLAIN, cell_record, side_of
from specflow.serving.load.samples import Block

LAG_LIMIT = 0.05
"""Of the time per token: a generator that is later than this measures itself."""
LEAST_TAU = 1.05
CONVENTIONS = {
    "tau": TAU_CONVENTION,
    "tokens": "the server's own counts, never chunks; end tokens and reasoning included",
    "first_token": "from when a request was due (in a closed loop: sent) to the first content, reasoning or tool delta",
    "per_token": "time from the first arrival to the last, over the tokens after the first arrival",
    "between_tokens": "per token: tokens that arrive together share the time since the arrival before them",
    "intervals": "95 %, bootstrap over prompts; percentiles are of single requests (of single tokens for ITL)",
    "speedup": "ratio of tokens per second in flight, each a ratio of sums over the same prompts",
    "failures": "in no figure; above the allowed share there is no measurement; nothing is tried again",
}
CACHE_STATES = {
    "cold": "emptied before every block, and no request shares a prefix with another",
    "shared": "emptied before every block; prefixes that prompts have in common are found there",
    "warm": "every prompt of a block was read before it began",
}
SETTINGS = (
    "model_path", "device", "dtype", "quantization", "kv_cache_dtype", "tp_size", "dp_size", "attention_backend",
    "max_running_requests", "max_total_tokens", "mem_fraction_static", "chunked_prefill_size", "disable_radix_cache",
    "disable_cuda_graph", "disable_overlap_schedule", "stream_interval", "schedule_policy",
)  # fmt: skip
"""Of what SGLang's ``/server_info`` states: what changes how fast it is. And everything about speculation."""
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLengths:
    """Of the drafter's manifest; none where it is not known."""

    block_size: int | None = None
    num_proposals: int | None = None


def cell_records(
    cells: Sequence[Cell], blocks: Sequence[Block], *, seed: int, lengths: DraftLengths
) -> list[CellRecord]:
    """One for each cell of which anything was measured."""
    found = []
    for cell in cells:
        own = {mode: [b for b in blocks if b.cell == cell.name and b.mode == mode] for mode in (PLAIN, DRAFTER)}
        sides = {
            mode: side_of(
                own[mode], cell, seed=seed, block_size=lengths.block_size, num_proposals=lengths.num_proposals
            )
            for mode in own
        }
        if any(sides.values()):
            found.append(cell_record(cell, sides, own, seed=seed))
    return found


def notes_of(cells: Sequence[CellRecord], *, running: Mapping[str, int | None]) -> list[str]:
    """What a reader must know of the figures. ``running``: requests that the server of a mode runs at a time."""
    found = []
    for cell in cells:
        where = f"{cell.dataset}, {cell.sampling}, {cell.load}"
        for mode, side in ((PLAIN, cell.baseline), (DRAFTER, cell.drafter)):
            if side is None:
                continue
            found += [f"{where}, {mode}: {said}" for said in _of_a_side(side)]
            limit = running.get(mode)
            if limit is not None and cell.concurrency is not None and cell.concurrency > limit:
                found.append(
                    f"{where}, {mode}: the server runs {limit} requests at a time (max_running_requests); the others "
                    "wait, and their waiting is in the first-token times"
                )
        if cell.drafter is not None and cell.drafter.tau is not None and cell.drafter.tau < LEAST_TAU:
            found.append(f"{where}: {cell.drafter.tau:.3f} tokens a round: the drafter accepts next to nothing")
    return found


def _of_a_side(side: Side) -> list[str]:
    found = []
    if side.failures:
        listed = ", ".join(f"{reason} ({count})" for reason, count in side.failures.items())
        found.append(f"{sum(side.failures.values())} requests failed and are left out: {listed}")
    if side.per_token is not None and side.generator_lag > LAG_LIMIT * side.per_token.mean:
        found.append(
            f"the load generator was {1000 * side.generator_lag:.1f} ms late on average, more than {LAG_LIMIT:.0%} of "
            "the time per token: it had too little of the processor"
        )
    return found


def stated_settings(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name in SETTINGS or name.startswith("speculative_")}


def settings_notes(drafter: Mapping[str, Any]) -> list[str]:
    """``drafter``: settings of the server with the drafter."""
    loose = [f"{name} {drafter[name]}" for name in THRESHOLDS if drafter.get(name) not in (None, 1.0)]
    if not loose:
        return []
    return [f"the server accepts more than the target would ({', '.join(loose)}): its answers are not the target's"]


def conditions_of(shape: LoadShape) -> dict[str, Any]:
    return shape.model_dump(include={"max_new_tokens", "repeats", "warmup_requests", "max_failures", "seed", "cache"})
