"""The figures of one server in one cell of the matrix, of both together, and where a drafter stops being a gain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from specflow.config.load_result import BreakEven, CellRecord, Side, Speedup, Spread
from specflow.serving.load.cells import Cell
from specflow.serving.load.counts import counted, histogram, lengths, positions, tau_of
from specflow.serving.load.samples import Block, Sample
from specflow.serving.load.spread import Floats, by_prompt, ratio_interval, spread
from specflow.serving.load.steady import steady_rate

DRAFTER, PLAIN = "drafter", "plain"


def side_of(
    blocks: Sequence[Block], cell: Cell, *, seed: int, block_size: int | None = None, num_proposals: int | None = None
) -> Side | None:
    """All repeats of one mode; none where no answer counts."""
    samples = [s for b in blocks for s in b.samples]
    if not samples:
        return None
    tokens, seconds = sum(b.tokens for b in blocks), sum(b.seconds for b in blocks)
    between = [s.between_tokens for s in samples]
    counts = [s.counters for s in samples]
    tau, tau_low, tau_high = tau_of(samples, seed=seed)
    rounds = sum(c.rounds or 0 for c in counts) if counted(samples) else None
    accepted = histogram(counts)
    watched = [b.generator for b in blocks if b.generator]
    return Side(
        requests=len(samples),
        failures=dict(sorted(Counter(f.reason for b in blocks for f in b.failures).items())),
        prompts=len({s.id for s in samples}),
        tokens=tokens,
        reasoning_tokens=_total([c.reasoning_tokens for c in counts]),
        finish=dict(sorted(Counter(s.finish for s in samples).items())),
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        steady_tokens_per_second=steady_rate(blocks, cell.concurrency),
        tokens_per_request_second=tokens / sum(s.seconds for s in samples),
        requests_per_second=len(samples) / seconds,
        first_token=_surely(spread([(s.id, s.first_token, 1) for s in samples], seed=seed)),
        per_token=spread(
            [(s.id, s.decode_seconds, s.decode_tokens) for s in samples if s.decode_tokens > 0], seed=seed
        ),
        between_tokens=None
        if any(b is None for b in between)
        else spread(
            [(s.id, gap * n, n) for s, gaps in zip(samples, between, strict=True) for gap, n in gaps or ()], seed=seed
        ),
        request=_surely(spread([(s.id, s.seconds, 1) for s in samples], seed=seed)),
        late=max(s.sent - s.due for s in samples),
        cached_share=_cached_share(samples),
        tau=tau,
        tau_low=tau_low,
        tau_high=tau_high,
        tokens_per_round=sum(c.tokens for c in counts if c.rounds) / rounds if rounds else None,
        rounds=rounds,
        acceptance=positions(accepted, num_proposals=num_proposals),
        lengths=lengths(samples, block_size=block_size, num_proposals=num_proposals),
        generator_lag=sum(g.lag_mean for g in watched) / max(len(watched), 1),
        generator_lag_worst=max((g.lag_worst for g in watched), default=0.0),
        generator_cpu=sum(g.cpu_seconds for g in watched) / seconds,
    )


def cell_record(
    cell: Cell, sides: Mapping[str, Side | None], blocks: Mapping[str, Sequence[Block]], *, seed: int
) -> CellRecord:
    """``sides``, ``blocks``: by mode."""
    return CellRecord(
        dataset=cell.dataset,
        sampling=cell.sampling_name,
        load=cell.load,
        concurrency=cell.concurrency,
        rate=cell.rate,
        baseline=sides.get(PLAIN),
        drafter=sides.get(DRAFTER),
        speedup=speedup(blocks.get(DRAFTER, ()), blocks.get(PLAIN, ()), seed=seed),
    )


def speedup(drafter: Sequence[Block], plain: Sequence[Block], *, seed: int) -> Speedup | None:
    """Tokens per request second, with the drafter over without; the interval draws prompts, both sides of each.

    None where either side has no answer. Tokens per second that a request is in flight are, at a constant number of
    them, proportional to throughput, without filling and draining; in an open loop they are what a user feels.
    """
    fast, slow = _in_flight(drafter), _in_flight(plain)
    shared = [name for name in fast if name in slow]
    if not shared:
        return None
    sums = np.array([[*fast[name], *slow[name]] for name in shared], dtype=np.float64)
    low, high = ratio_interval(sums, _ratio, seed=seed)
    clock = np.array([sum(b.tokens for b in side) / sum(b.seconds for b in side) for side in (drafter, plain)])
    return Speedup(ratio=float(_ratio(sums.sum(0))), low=low, high=high, by_the_clock=float(clock[0] / clock[1]))


def break_even(cells: Sequence[CellRecord]) -> list[BreakEven]:
    """For every data set and sampling that was measured in closed loops."""
    groups: dict[tuple[str, str], dict[int, float]] = {}
    for cell in cells:
        if cell.concurrency is not None and cell.speedup is not None:
            groups.setdefault((cell.dataset, cell.sampling), {})[cell.concurrency] = cell.speedup.ratio
    return [_break_even(dataset, sampling, found) for (dataset, sampling), found in groups.items()]


def _break_even(dataset: str, sampling: str, found: Mapping[int, float]) -> BreakEven:
    points = sorted(found.items())
    slower = next((c for c, ratio in points if ratio <= 1.0), None)
    faster = [c for c, ratio in points if ratio > 1.0 and (slower is None or c < slower)]
    at = None
    if slower is None:
        says = f"faster at every measured concurrency, up to {points[-1][0]}"
    elif not faster:
        says = f"not faster at any measured concurrency from {slower} on" if _falls(points) else "not faster at first"
    else:
        a, b = faster[-1], slower
        share = (found[a] - 1.0) / (found[a] - found[b])
        at = math.exp(math.log(a) + share * (math.log(b) - math.log(a)))
        says = f"faster up to about {at:.1f} requests in flight"
    if not _falls(points):
        says += "; faster again above that: the figures are not monotone"
    return BreakEven(
        dataset=dataset, sampling=sampling, concurrency=at, faster_up_to=faster[-1] if faster else None,
        slower_from=slower, says=says,
    )  # fmt: skip


def _falls(points: Sequence[tuple[int, float]]) -> bool:
    """Whether nothing is faster again after it was not."""
    states = [ratio > 1.0 for _, ratio in points]
    return states == sorted(states, reverse=True)


def _in_flight(blocks: Sequence[Block]) -> dict[str, Floats]:
    """Tokens and seconds in flight of each prompt."""
    rows = [(s.id, (s.counters.tokens, s.seconds)) for b in blocks for s in b.samples]
    return dict(zip(dict.fromkeys(name for name, _ in rows), by_prompt(rows), strict=True))


def _ratio(sums: Floats) -> Floats:
    found: Floats = (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
    return found


def _cached_share(samples: Sequence[Sample]) -> float | None:
    known = [s.counters for s in samples if s.counters.cached_tokens is not None and s.counters.prompt_tokens]
    if len(known) < len(samples):
        return None
    return sum(c.cached_tokens or 0 for c in known) / sum(c.prompt_tokens or 0 for c in known)


def _total(values: Sequence[int | None]) -> int | None:
    return None if any(v is None for v in values) else sum(v or 0 for v in values)


def _surely(found: Spread | None) -> Spread:
    assert found is not None  # there are samples
    return found
