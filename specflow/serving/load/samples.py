"""What a load generator keeps of each request: when its tokens came, and what the server counted.

Times are seconds since the block of requests began. A request that did not end as it should is a failure, never a
sample with missing values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    """Something that a user sees."""

    at: float
    tokens: int | None
    """Of the answer so far, by the server's count; none where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The server's own counts of one answer. None: it does not say."""

    tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    rounds: int | None = None
    """Verify passes; the first token comes from prefill and belongs to none."""
    accepted: tuple[int, ...] | None = None
    """Rounds by accepted proposals: ``accepted[r]`` rounds accepted ``r``."""
    proposed: int | None = None
    """Proposals of all rounds."""
    cut: tuple[int, ...] | None = None
    """Rounds by verified rows, where a scheduler chooses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer."""

    number: int
    id: str
    kind: str
    due: float
    """When it was to be sent; in a closed loop when it was."""
    sent: float
    arrivals: tuple[Arrival, ...]
    """At least one; times increase."""
    finished: float
    finish: str
    counters: Counters

    @property
    def first_token(self) -> float:
        """Seconds from when it was due: a generator or a server that is late does not hide it."""
        return self.arrivals[0].at - self.due

    @property
    def seconds(self) -> float:
        """From when it was due to its end."""
        return self.finished - self.due

    @property
    def decode_seconds(self) -> float:
        return self.arrivals[-1].at - self.arrivals[0].at

    @property
    def decode_tokens(self) -> int:
        """Tokens that came after the first arrival; where the server does not say what that held, after the first."""
        return self.counters.tokens - (self.arrivals[0].tokens or 1)

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first arrival; none where nothing came after it."""
        return self.decode_seconds / self.decode_tokens if self.decode_tokens > 0 else None

    @property
    def between_tokens(self) -> list[tuple[float, int]] | None:
        """``(seconds, tokens)``: that many tokens, each so long after the one before.

        None where the server does not say how many tokens a chunk holds.
        Tokens that come together share the time since the arrival before them.
        """
        found, before = [], self.arrivals[0]
        for now in self.arrivals[1:]:
            if before.tokens is None or now.tokens is None:
                return None
            if new := now.tokens - before.tokens:
                found.append(((now.at - before.at) / new, new))
                before = now
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request without an answer that counts."""

    number: int
    id: str
    kind: str
    due: float
    at: float
    reason: str
    """Short, one of few."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """What the load generator itself cost while a block ran."""

    lag_mean: float
    """Seconds that its event loop was late when it was to wake."""
    lag_worst: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One mode's pass over one cell of the matrix."""

    mode: str
    cell: str
    repeat: int
    seconds: float
    """By the clock, from the first request to the end of the last."""
    began: float = 0.0
    """By the machine's monotonic clock."""
    samples: tuple[Sample, ...]
    failures: tuple[Failure, ...] = ()
    generator: Generator | None = None

    @property
    def tokens(self) -> int:
        return sum(s.counters.tokens for s in self.samples)

    @property
    def failed_share(self) -> float:
        return len(self.failures) / max(len(self.failures) + len(self.samples), 1)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Block:
        """The way back; raises ``KeyError`` or ``TypeError`` on another form."""
        return cls(
            **{
                **row,
                "samples": tuple(_sample(s) for s in row["samples"]),
                "failures": tuple(Failure(**f) for f in row["failures"]),
                "generator": row["generator"] and Generator(**row["generator"]),
            }
        )


def _sample(row: Mapping[str, Any]) -> Sample:
    counts = row["counters"]
    tuples = {name: counts[name] and tuple(counts[name]) for name in ("accepted", "cut")}
    arrivals = tuple(Arrival(*arrival) for arrival in row["arrivals"])
    return Sample(**{**row, "arrivals": arrivals, "counters": Counters(**{**counts, **tuples})})
