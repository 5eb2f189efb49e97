"""When a fall of a server's tau calls for a retraining: a state machine of readings, and its state between polls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from specflow.config.watch import WatchParams

Finding = Literal["unknown", "as measured", "below", "cooling down", "retrain"]


class Reading(Protocol):
    """The part of ``specflow.serving.monitor.Reading`` that is judged."""

    @property
    def at(self) -> float:
        """Seconds since 1970."""
        ...

    @property
    def tau(self) -> float | None: ...
    @property
    def rounds(self) -> float | None:
        """Of the window; none where the server does not count them."""
        ...

    @property
    def restarted(self) -> bool: ...
    def as_json(self) -> dict[str, Any]: ...


class WatchState(BaseModel):
    """What is kept between polls. Times are seconds since 1970."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drafter: str = ""
    """Key of the promoted drafter, or the tau that was given: with another one, everything begins anew."""
    below_since: float | None = None
    retrained_at: float | None = None
    reading: dict[str, Any] | None = None
    """The reading that the next window begins at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    finding: Finding
    reason: str


def judge(state: WatchState, reading: Reading, params: WatchParams, *, expected: float) -> tuple[WatchState, Verdict]:
    """The state after a reading, and what it says. ``expected``: tau that the drafter was promoted with.

    Below ``margin`` a fall begins; it ends where tau is back above ``recovery``, so that a tau that wavers between the
    two neither ends it nor begins one.
    """
    if reading.restarted:
        state = state.model_copy(update={"below_since": None})
    tau, rounds = reading.tau, reading.rounds
    if tau is None or (rounds is not None and rounds < params.least_rounds):
        # The window grows until it says something.
        begun = state if state.reading and not reading.restarted else _seen(state, reading)
        return begun, Verdict(finding="unknown", reason=f"{rounds or 0:.0f} rounds, {params.least_rounds} are needed")
    state = _seen(state, reading)
    shown = f"tau {tau:.3f}, promoted with {expected:.3f}"
    if tau >= expected * (1 - params.recovery):
        return state.model_copy(update={"below_since": None}), Verdict(finding="as measured", reason=shown)
    if tau >= expected * (1 - params.margin) and state.below_since is None:
        return state, Verdict(finding="as measured", reason=shown)
    since = reading.at if state.below_since is None else state.below_since
    state = state.model_copy(update={"below_since": since})
    lasted = reading.at - since
    if lasted < params.seconds:
        return state, Verdict(finding="below", reason=f"{shown}, for {lasted:.0f} of {params.seconds:.0f} s")
    left = 0.0 if state.retrained_at is None else state.retrained_at + params.cool_down - reading.at
    if left > 0:
        return state, Verdict(finding="cooling down", reason=f"{shown}; not again for {left:.0f} s")
    fired = state.model_copy(update={"below_since": None, "retrained_at": reading.at})
    return fired, Verdict(finding="retrain", reason=f"{shown}: fallen for {lasted:.0f} s")


def _seen(state: WatchState, reading: Reading) -> WatchState:
    return state.model_copy(update={"reading": reading.as_json()})


def of_drafter(state: WatchState, drafter: str) -> WatchState:
    """The state if it is about this drafter; else a new one, which remembers only the last retraining."""
    return state if state.drafter == drafter else WatchState(drafter=drafter, retrained_at=state.retrained_at)
