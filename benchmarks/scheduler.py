"""The scheduler against verifying everything and against no drafter, in turn in one run, beside what was predicted.

    python benchmarks/scheduler.py --target STORE/target/KEY --drafter STORE/drafter/KEY --tokens STORE/tokens/KEY \\
        --calibration STORE/calibration/KEY --concurrency 1 8 32

Costs of target passes (ragged ones too) and of drafting are measured first, in the same process. Then every mode
decodes the same held-out prompts, wave after wave in turn: plain decoding, every proposal verified (`fixed`), `causal`,
`lagged`. Tokens per second are the tokens after the first over the time by the clock less that of prefill, which is no
scheduler's matter and which plain decoding shares between prompts. The prediction replays the rounds of `fixed` at the
measured costs. Prints, per concurrency: tokens per second, the ratio to the better of `plain` and `fixed`, predicted
over measured, rows per round, how often a request drafted, and the share of the time that the scheduler itself took.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from specflow.calibration.sglang_sts import read_sts
from specflow.config.scheduler import SchedulerParams
from specflow.costs.cells import uneven_splits
from specflow.costs.contexts import contexts_like
from specflow.costs.drafting import DraftCost
from specflow.costs.fit import fit_additive, misses
from specflow.costs.target_passes import TargetPasses
from specflow.costs.timing import time_passes
from specflow.data.documents import iterate_documents
from specflow.decoding import plain, rounds
from specflow.decoding.draft_timing import time_drafting
from specflow.decoding.granted_metrics import granted
from specflow.decoding.plain import decode_plain
from specflow.decoding.records import Generation
from specflow.decoding.speculative import decode_speculative_batch
from specflow.drafters.loading import load_drafter
from specflow.scheduling import scheduler as scheduler_module
from specflow.scheduling.scheduler import Scheduler
from specflow.serving import waves as waves_module
from specflow.serving.requests import Request, heldout_requests
from specflow.serving.waves import Wave, measure_waves
from specflow.simulation.costs import RoundCost
from specflow.simulation.policy import Policy
from specflow.simulation.simulator import simulate_wave
from specflow.simulation.traces import read_record_rounds, traces_of
from specflow.targets.target import Target

MODES = ("plain", "fixed", "causal", "lagged")


def main() -> None:
    options = _options()
    if options.cpu_time:
        _count_cpu_seconds(options)
    target = Target.load(options.target, precision=options.precision, threads=options.threads)
    proposer: Any = load_drafter(options.drafter, target)
    requests = heldout_requests(iterate_documents(options.tokens))
    sts = read_sts(options.calibration / "sts.json").temperatures
    known = traces_of(read_record_rounds(options.calibration / "records.jsonl"), temperatures=sts)
    table = _table(target, proposer, [len(r.prompt) for r in requests], options)
    drafting = time_drafting(target, proposer, requests[0].prompt)
    print(f"drafting: {1e3 * drafting.per_round:.2f} ms a round and {1e3 * drafting.per_request:.2f} ms a request")
    for concurrency in options.concurrency:
        modes: dict[str, Any] = {"plain": _plain(target, options), "fixed": _drafting(target, proposer, options, None)}
        for mode in MODES[2:]:
            asked = {"mode": mode} if options.evidence is None else {"mode": mode, "evidence": options.evidence}
            params = SchedulerParams.model_validate(asked)
            scheduler = Scheduler(
                params=params, num_proposals=proposer.num_proposals, cost=table, drafting=drafting, temperatures=sts,
                expected=known.mean_survival_M().tolist(),
            )  # fmt: skip
            modes[mode] = _drafting(target, proposer, options, scheduler)
        chosen = _chosen(requests, options.prompts or max(8, 2 * concurrency))
        with TemporaryDirectory() as scratch:
            waves = measure_waves(
                chosen, modes, concurrency=concurrency, repeats=options.repeats, kept=Path(scratch) / "waves.jsonl",
                on_wave=lambda: None,
            )  # fmt: skip
        _report(waves, chosen, concurrency, table=table, drafting=drafting, temperatures=sts, options=options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "drafter", "tokens", "calibration"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="directory of the artifact")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompts", type=int, help="of each concurrency; none: twice as many, at least 8")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--visits", type=int, default=2, help="of every shape in the cost table")
    parser.add_argument("--evidence", type=int, help="of the scheduler; none: its default")
    parser.add_argument("--precision", default="packed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds, not those of the clock")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser.parse_args()


def _count_cpu_seconds(options: argparse.Namespace) -> None:
    """For a machine that others use too: what they take is not counted, so one thread only."""
    if options.threads != 1:
        raise SystemExit("--cpu-time counts the seconds of all threads: use it with --threads 1")
    for module in (plain, rounds, waves_module, scheduler_module):
        module.perf_counter = time.process_time  # type: ignore[attr-defined]


def _chosen(requests: Sequence[Request], count: int) -> list[Request]:
    """All kinds in their shares."""
    return [requests[int(i)] for i in np.linspace(0, len(requests) - 1, min(count, len(requests))).round()]


def _table(target: Target, proposer: Any, lengths: Sequence[int], options: argparse.Namespace) -> Any:
    """Uniform and ragged passes behind prompts of ``lengths``, with the layers that the drafter reads."""
    most, concurrency = proposer.num_proposals + 1, options.concurrency
    contexts = contexts_like([n + options.max_new_tokens // 2 for n in lengths], max(concurrency))
    passes = TargetPasses(target, contexts=contexts, most_rows=most, layer_ids=proposer.layer_ids)
    splits: list[tuple[int, ...]] = []
    for count in sorted({1, 4, *concurrency}):
        splits += [(rows,) * count for rows in (1, 2, 3, 4, 6, most) if count * rows <= 96 or rows in (1, 2, 4, most)]
        if count > 1:
            splits += [s for share in (1.25, 1.5, 2.5) for s in uneven_splits(count, int(share * count), most=most)]
    clock = time.process_time if options.cpu_time else time.perf_counter
    cells = time_passes(passes, splits, visits=options.visits, samples=2, seed=0, clock=clock)
    table = fit_additive(cells)
    missed = abs(misses(table, cells))
    one, full = float(table.seconds(1, 1)), float(table.seconds(1, most))
    print(
        f"{len(cells)} shapes: 1 row {1e3 * one:.1f} ms, {most} rows {1e3 * full:.1f} ms; the table misses by "
        f"{float(np.median(missed)):.1%}, at most {missed.max():.1%}"
    )
    for cell in cells:
        ragged_split = "" if cell.uniform else f" as {max(cell.split)}..{min(cell.split)}"
        print(f"    {cell.requests:3d} requests {cell.rows:4d} rows{ragged_split}: {1e3 * cell.median:8.1f} ms")
    return table


def _plain(target: Target, options: argparse.Namespace) -> Any:
    return lambda prompts, width: decode_plain(target, prompts, max_new_tokens=options.max_new_tokens, batch_size=width)


def _drafting(target: Target, proposer: Any, options: argparse.Namespace, scheduler: Scheduler | None) -> Any:
    return lambda prompts, width: decode_speculative_batch(
        target, proposer, prompts, max_new_tokens=options.max_new_tokens, batch_size=width, scheduler=scheduler
    )


def _report(
    waves: Sequence[Wave],
    requests: Sequence[Request],
    concurrency: int,
    *,
    table: Any,
    drafting: DraftCost,
    temperatures: Any,
    options: argparse.Namespace,
) -> None:
    by_mode = {mode: [w for w in waves if w.mode == mode] for mode in MODES}
    rates = {mode: _rate(found) for mode, found in by_mode.items()}
    better = max(rates["plain"], rates["fixed"])
    full = [r for w in by_mode["fixed"] for g in w.generations for r in g.rounds]
    cost = RoundCost(
        table=table, drafting=drafting, seconds_per_request=float(np.median([r.other_seconds for r in full]))
    )
    print(f"{concurrency} at a time, {len(requests)} prompts, {options.repeats} times")
    for mode in MODES:
        expected = _predicted(by_mode["fixed"], mode, concurrency, cost, temperatures)
        row: dict[str, Any] = {
            "concurrency": concurrency, "mode": mode, "tokens_per_second": rates[mode],
            "over_better": rates[mode] / better, "predicted_over_measured": expected / rates[mode],
        }  # fmt: skip
        line = f"    {mode:7s} {rates[mode]:7.2f} tokens/s, {row['over_better']:.3f} of the better, predicted "
        line += f"{row['predicted_over_measured']:.3f} of measured"
        if mode != "plain":
            found = granted((g for w in by_mode[mode] for g in w.generations), len(temperatures))
            seconds = sum(_decoding_seconds(w) for w in by_mode[mode])
            row |= {**found, "share": found["seconds"] / seconds}
            drafted = 1 - found["rounds_without_drafting"] / found["rounds"]
            line += f"; {found['rows'] / found['rounds']:.2f} rows a round, {drafted:.0%} drafted, "
            line += f"scheduler {row['share']:.2%} of the time"
        print(line)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _predicted(fixed: Sequence[Wave], mode: str, concurrency: int, cost: RoundCost, temperatures: Any) -> float:
    """Tokens per second of all waves, from the rounds of those that verified everything."""
    policy = Policy(kind=mode, length=len(temperatures) if mode == "fixed" else 0)  # type: ignore[arg-type]
    tokens = seconds = 0.0
    for wave in fixed:
        # The engine takes the longest prompts first.
        order = sorted(wave.generations, key=lambda g: -g.prompt_length)
        traces = traces_of([[_as_row(r) for r in g.rounds] for g in order], temperatures=temperatures)
        own = cost.without_drafting() if mode == "plain" else cost
        found = simulate_wave(traces, policy, concurrency, own)
        tokens += float(traces.tokens_Q.sum())
        seconds += float(traces.tokens_Q.sum()) / found.tokens_per_second
    return tokens / seconds


def _as_row(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("proposed", "accepted", "delivered", "confidence")}


def _decoding_seconds(wave: Wave) -> float:
    return wave.seconds - sum(g.prefill_seconds for g in wave.generations)


def _rate(waves: Sequence[Wave]) -> float:
    generations: list[Generation] = [g for w in waves for g in w.generations]
    return sum(len(g.tokens) - 1 for g in generations) / sum(_decoding_seconds(w) for w in waves)


if __name__ == "__main__":
    main()
