"""Throughput while a closed loop was full: neither while it filled nor while it drained."""

from __future__ import annotations

from collections.abc import Sequence

from specflow.serving.load.samples import Block, Sample


def steady_rate(blocks: Sequence[Block], concurrency: int | None) -> float | None:
    """Tokens per second between the last start of the first ``concurrency`` answers and the end of the first place.

    From when every request in flight has its first token, to when a request ends with none left to follow. None for an
    open loop, where a block was never full, and where arrivals are not counted.
    """
    if concurrency is None:
        return None
    tokens = seconds = 0.0
    for block in blocks:
        window = _window(block, concurrency)
        if window is None:
            return None
        begin, end = window
        for sample in block.samples:
            counted = _tokens_within(sample, begin, end)
            if counted is None:
                return None
            tokens += counted
        seconds += end - begin
    return tokens / seconds if seconds else None


def _window(block: Block, concurrency: int) -> tuple[float, float] | None:
    if len(block.samples) <= concurrency or block.failures:
        return None
    started = sorted(block.samples, key=lambda s: s.sent)
    begin = max(s.arrivals[0].at for s in started[:concurrency])
    end = sorted(s.finished for s in block.samples)[-concurrency]
    return (begin, end) if end > begin else None


def _tokens_within(sample: Sample, begin: float, end: float) -> float | None:
    """Tokens that came in ``(begin, end]``."""
    before, found = 0, 0
    for at, tokens in sample.arrivals:
        if tokens is None:
            return None
        if begin < at <= end:
            found += tokens - before
        before = tokens
    return found
