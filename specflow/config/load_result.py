"""The record of a server's benchmark, ``load.json``; its schema is ``specflow schema load-result``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A part of the record: nothing else stands in it, and numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Spread(Record):
    """Seconds over the requests of a measurement."""

    mean: float = Field(description="A ratio of sums.")
    low: float | None = Field(description="95 % interval of the mean: bootstrap over prompts; none with one prompt.")
    high: float | None
    p50: float
    p90: float
    p99: float
    worst: float


class Lengths(Record):
    """Six lengths that are easily taken for each other; none: the server or the manifest does not say."""

    block_size: int | None = Field(description="Of training.")
    num_proposals: int | None = Field(description="m: proposals of a round.")
    verify_len: float | None = Field(description="Rows verified a round, the anchor included; mean.")
    accept_len: float | None = Field(description="r: proposals accepted a round, before any cut; mean.")
    cap_trim: float | None = Field(description="Accepted proposals that a scheduler's cut took away a round; mean.")
    commit_len: float | None = Field(description="Rows committed a round, the anchor included; mean.")


class Positions(Record):
    """Acceptance at positions 1..m, before any cut by an end token or the length limit."""

    cumulative: list[float | None] = Field(description="Rounds that accept at least j proposals, as a share.")
    conditional: list[float | None] = Field(description="The same, of the rounds that accepted j - 1.")
    accepted: list[int]
    judged: list[int] = Field(description="All rounds.")


class Side(Record):
    """One server in one cell of the matrix; all repeats together."""

    requests: int = Field(description="Answers that count.")
    failures: dict[str, int] = Field(description="Requests that failed, by reason; they are in no other figure.")
    prompts: int
    tokens: int = Field(description="Of all answers, by the server's count; reasoning and end tokens included.")
    reasoning_tokens: int | None
    finish: dict[str, int] = Field(description="Answers by how they ended.")
    seconds: float = Field(description="By the clock, from the first request to the end of the last; sum of repeats.")
    tokens_per_second: float = Field(description="`tokens` over `seconds`: filling and draining included.")
    steady_tokens_per_second: float | None = Field(
        description="The same between the moment when the load was full and that when it began to drain; none where it "
        "never was, or where chunks are not counted."
    )
    tokens_per_request_second: float = Field(description="`tokens` over the seconds that requests were in flight.")
    requests_per_second: float
    first_token: Spread = Field(description="TTFT: from when a request was due to the first thing that a user sees.")
    per_token: Spread | None = Field(
        description="TPOT: from the first arrival to the last, over the tokens after the first; none without any."
    )
    between_tokens: Spread | None = Field(
        description="ITL: per token, not per chunk; tokens that come together share the time; none where chunks are "
        "not counted."
    )
    request: Spread = Field(description="End to end: from when a request was due to the end of its answer.")
    late: float = Field(description="Worst seconds that the generator sent a request after it was due.")
    cached_share: float | None = Field(description="Prompt tokens that the prefix cache had; none: it does not say.")
    tau: float | None = Field(description="By this project's convention, from raw counters; none without rounds.")
    tau_low: float | None
    tau_high: float | None
    tokens_per_round: float | None = Field(
        description="Completion tokens over rounds, as SGLang counts: with the first."
    )
    rounds: int | None
    acceptance: Positions | None
    lengths: Lengths | None
    generator_lag: float = Field(description="Seconds that the generator's event loop was late, mean.")
    generator_lag_worst: float
    generator_cpu: float = Field(description="Share of one core that the generator used.")


class Speedup(Record):
    """The server with the drafter over the one without, measured in turn."""

    ratio: float = Field(description="Of tokens per request second.")
    low: float | None = Field(description="95 % interval: bootstrap over prompts; none with one prompt.")
    high: float | None
    by_the_clock: float = Field(description="Of tokens per second.")


class CellRecord(Record):
    """One cell of the matrix."""

    dataset: str = Field(description="Kind of the prompts.")
    sampling: str = Field(description="A name of `sampling`.")
    load: str = Field(description="In words.")
    concurrency: int | None = Field(description="Requests in flight, of a closed loop.")
    rate: float | None = Field(description="Requests per second, of an open one.")
    baseline: Side | None
    drafter: Side | None
    speedup: Speedup | None = Field(description="None without a baseline.")


class BreakEven(Record):
    """Where, between measured concurrencies, the drafter stops being a gain."""

    dataset: str
    sampling: str
    concurrency: float | None = Field(description="Interpolated in the logarithm; none where no pair encloses it.")
    faster_up_to: int | None = Field(description="Largest measured one below it; none: not faster at the first.")
    slower_from: int | None = Field(description="Smallest measured one that is not faster; none: faster at each.")
    says: str


class ServerRecord(Record):
    """One of the servers."""

    mode: Literal["plain", "drafter"]
    engine: str
    version: str | None
    started: Literal["here", "running already"]
    settings: dict[str, Any] = Field(description="Effective ones, as it states them.")
    command: str | None = None


class LoadResult(Record):
    """A benchmark of a server."""

    format: Literal[1] = 1
    complete: bool = Field(description="Every cell was measured; otherwise `error` says why not.")
    error: str | None = None
    conventions: dict[str, str]
    cells: list[CellRecord]
    break_even: list[BreakEven]
    sampling: dict[str, dict[str, Any]]
    cache_state: str
    alternation: str = Field(description="How the two servers took turns.")
    dataset: dict[str, Any]
    conditions: dict[str, Any] = Field(description="Longest answer, repeats, warm-up, seed.")
    servers: list[ServerRecord]
    parity: dict[str, Any] | None = Field(description="The gate that was passed; none: overridden, or not needed.")
    unproven: bool = Field(description="No parity run has proved this server.")
    drafter: dict[str, Any] | None
    target: dict[str, Any] | None
    hardware: dict[str, Any]
    versions: dict[str, str]
    cross_check: dict[str, Any] | None = None
    notes: list[str] = Field(description="What a reader must know of these figures.")
