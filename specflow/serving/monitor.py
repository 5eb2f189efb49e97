"""What a production server's drafter accepts, over a window of its counters, against what it was measured to accept.

SGLang counts when a request ends: its tokens, its target passes (``spec_verify_calls``) and itself. The first token of
a request comes from prefill and belongs to no round, hence tau = (tokens - requests) / passes, as everywhere here.
Counters start at zero with the server; one that fell since the last reading tells of a restart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from specflow.serving.acceptance_record import AcceptanceRecord
from specflow.serving.server_metrics import Counters, fetch
from specflow.targets.retrying import ServerError

LEAST_ROUNDS = 200
"""Fewer say nothing: with a spread of 2 tokens, tau is uncertain by 0.14."""
USUAL_MARGIN = 0.1
STANDARD_ERRORS = 3.0
"""Rounds of one request resemble each other, so that the error is larger than its formula says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a server. Figures are of the window: since an earlier reading, else since the server started."""

    url: str
    at: float
    """Seconds since 1970."""
    counters: Counters | None
    """Since the server started; none where it does not publish its metrics."""
    window: Counters | None
    """What came since the earlier reading."""
    seconds: float | None = None
    """Length of the window; none: since the server started."""
    restarted: bool = False
    """The server was started again within the window, which then holds what came after."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """The server's own last figures, by the names of :data:`server_metrics.GAUGES`."""

    @property
    def tau(self) -> float | None:
        """Tokens per round; none where there was no round. Without metrics, the server's own mean since its start."""
        if self.window is None:
            return self.gauges.get("accept_length")
        return (self.window.tokens - self.window.requests) / self.window.rounds if self.window.rounds else None

    @property
    def rounds(self) -> float | None:
        return None if self.window is None else self.window.rounds

    def per_second(self, name: str) -> float | None:
        """``tokens``, ``requests`` or ``rounds`` per second of the window; none where its length is not known."""
        if self.window is None or not self.seconds:
            return None
        return float(getattr(self.window, name)) / self.seconds

    def as_json(self) -> dict[str, Any]:
        rates = {f"{name}_per_second": self.per_second(name) for name in ("tokens", "requests", "rounds")}
        return {**asdict(self), "tau": self.tau, **rates}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reading:
        """Inverse of ``as_json``; raises ``ValueError`` on something else."""
        try:
            own = {name: values[name] for name in cls.__dataclass_fields__}
            for name in ("counters", "window"):
                own[name] = own[name] and Counters(**own[name])
            return cls(**own)
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected a reading of `specflow monitor`, found another document ({error})") from error


def read(url: str, *, since: Reading | None = None, api_key: str | None = None, timeout: float = 10.0) -> Reading:
    """Ask the server once; ``since``: an earlier reading of it, for the window. Raises ``ServerError``."""
    found = fetch(url, api_key=api_key, timeout=timeout)
    reading = Reading(url=url, at=time.time(), counters=found.counters, window=found.counters, gauges=found.gauges)
    if since is None:
        return reading
    if since.url != url:
        raise ServerError(f"expected an earlier reading of {url}, found one of {since.url}")
    if reading.counters is None or since.counters is None:
        return reading
    seconds = reading.at - since.at
    if reading.counters.started_after(since.counters):
        return replace(reading, seconds=seconds, restarted=True)
    return replace(reading, window=reading.counters.minus(since.counters), seconds=seconds)


class State(Enum):
    """What a reading says of the drafter."""

    AS_MEASURED = "as measured"
    FALLEN = "fallen"
    UNKNOWN = "unknown"
    """Too little was decoded to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A reading against the record. ``state`` is ``FALLEN`` only where the fall is large, and no accident."""

    state: State
    found: float | None
    expected: float
    limit: float
    """``expected`` less the margin."""
    error: float | None
    """Standard error of the difference; none where rounds were not counted."""
    reason: str

    @property
    def alarm(self) -> bool:
        return self.state is State.FALLEN

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value, "alarm": self.alarm}


def drift(
    reading: Reading, record: AcceptanceRecord, margin: float = USUAL_MARGIN, *, least_rounds: int = LEAST_ROUNDS
) -> Drift:
    """Whether the drafter accepts less than it was measured to. ``margin``: the share of tau that it may lose."""
    tau, rounds, limit = reading.tau, reading.rounds, record.tau * (1.0 - margin)
    error = record.spread * math.sqrt(1.0 / rounds + 1.0 / record.rounds) if rounds else None
    if tau is None or (rounds is not None and rounds < least_rounds):
        state, reason = State.UNKNOWN, f"{rounds or 0:.0f} rounds in the window, {least_rounds} are needed"
    elif tau >= limit:
        state, reason = State.AS_MEASURED, f"tau {tau:.3f}, {record.tau:.3f} was measured"
    elif error is not None and record.tau - tau <= STANDARD_ERRORS * error:
        state = State.AS_MEASURED
        reason = f"tau {tau:.3f} is below {limit:.3f}, but uncertain by {error:.3f}: it may be chance"
    else:
        state = State.FALLEN
        reason = (
            f"tau {tau:.3f}, {record.tau:.3f} was measured: more than {margin:.0%} lost{_hint(tau, reading, record)}"
        )
    return Drift(state=state, found=tau, expected=record.tau, limit=limit, error=error, reason=reason)


def _hint(tau: float, reading: Reading, record: AcceptanceRecord) -> str:
    drafted = reading.gauges.get("draft_tokens")
    if record.num_proposals is not None and drafted and drafted != record.num_proposals + 1:
        return f"; the server drafts {drafted - 1:.0f} tokens a round, it was measured with {record.num_proposals}"
    if tau < 1.0 + 0.02 * (record.num_proposals or 1):
        return "; nearly nothing is accepted: another target, or an export that loaded wrong (specflow lint)"
    return "; the prompts differ from those it was trained on, or the target was changed"
