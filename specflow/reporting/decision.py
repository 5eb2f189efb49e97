"""Whether a drafter is promoted: a pure function of what was measured and of the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from specflow.reporting import text
from specflow.reporting.gain import Gain, gain
from specflow.reporting.ranking import PLAIN

Certificate = Literal["passed", "failed", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """See ``specflow.config.gate``."""

    margin: float
    confidence: float
    concurrency: int
    min_waves: int
    certificate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A new drafter, by its mode in the comparison."""

    name: str
    drafter: str
    """Key of its artifact."""
    export: str
    certificate: Certificate
    mode: str = ""
    """Its quickest mode: chains, or trees where those were measured too."""
    tokens_per_second: float = 0.0
    tau: float | None = None
    gain: Gain | None = None
    """Over the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What runs now: the promoted drafter, or plain decoding."""

    drafter: str | None
    mode: str
    tokens_per_second: float
    tau: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    promote: bool
    reason: str
    best: Candidate
    candidates: tuple[Candidate, ...]
    baseline: Baseline
    plain_tokens_per_second: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def decide(
    comparison: Mapping[str, Any],
    candidates: Sequence[Candidate],
    rule: Rule,
    *,
    incumbent: tuple[str, str] | None = None,
) -> Decision:
    """Judge the quickest of the candidates. ``comparison``: ``comparison.json``; ``incumbent``: its mode and key.

    Raises ``ValueError`` where the comparison has nothing at the rule's concurrency.
    """
    rows = [row for row in comparison["rows"] if row["concurrency"] == rule.concurrency]
    if not rows:
        known = sorted({row["concurrency"] for row in comparison["rows"]})
        raise ValueError(f"expected a comparison with {rule.concurrency} in flight, found {known}")
    base = _quickest(rows, incumbent[0] if incumbent else PLAIN)
    baseline = Baseline(
        drafter=incumbent[1] if incumbent else None,
        mode=base["mode"],
        tokens_per_second=base["tokens_per_second"],
        tau=base["tau"],
    )
    judged = tuple(_judged(c, rows, comparison["waves"], baseline, rule) for c in candidates)
    # One that may be promoted at all goes before a quicker one that may not.
    best = max(judged, key=lambda c: (_certified(c, rule), c.tokens_per_second))
    obstacle = _obstacle(best, baseline, rule)
    return Decision(
        promote=not obstacle,
        reason=obstacle or f"{best.name} is {_against(best, baseline, rule)}; {rule.margin:.1%} were asked for",
        best=best,
        candidates=judged,
        baseline=baseline,
        plain_tokens_per_second=_quickest(rows, PLAIN)["tokens_per_second"],
    )


def _quickest(rows: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The quickest mode of a drafter: its chains, or its trees (``NAME+tree``)."""
    own = [row for row in rows if row["mode"] in (name, f"{name}+tree")]
    if not own:
        raise ValueError(f"expected {name!r} in the comparison, found {', '.join(row['mode'] for row in rows)}")
    return max(own, key=lambda row: row["tokens_per_second"])


def _judged(
    candidate: Candidate,
    rows: Sequence[Mapping[str, Any]],
    waves: Sequence[Mapping[str, Any]],
    baseline: Baseline,
    rule: Rule,
) -> Candidate:
    row = _quickest(rows, candidate.name)
    found = gain(waves, row["mode"], baseline.mode, concurrency=rule.concurrency, confidence=rule.confidence)
    return replace(
        candidate, mode=row["mode"], tokens_per_second=row["tokens_per_second"], tau=row["tau"], gain=found
    )  # fmt: skip


def _certified(candidate: Candidate, rule: Rule) -> bool:
    return candidate.certificate == "passed" or (candidate.certificate == "absent" and not rule.certificate)


def _obstacle(best: Candidate, baseline: Baseline, rule: Rule) -> str:
    """Why the best candidate is not promoted; empty if nothing speaks against it."""
    if not _certified(best, rule):
        return f"{best.name} has no certificate that sampling is not changed: {best.certificate} (verify.lossless)"
    found = best.gain
    if found is None or found.low is None or found.waves < rule.min_waves:
        waves = found.waves if found else 0
        return f"{waves} waves were measured, from which nothing is concluded; gate.min_waves is {rule.min_waves}"
    if found.low < 1 + rule.margin:
        return f"{best.name} is {_against(best, baseline, rule)}; its lower end must reach {1 + rule.margin:.3f}"
    return ""


def _against(best: Candidate, baseline: Baseline, rule: Rule) -> str:
    assert best.gain is not None
    what = f"the promoted drafter {baseline.drafter[:12]}" if baseline.drafter else "plain decoding"
    return (
        f"{text.times(best.gain.ratio)} as quick as {what} with {rule.concurrency} in flight "
        f"({text.number(best.tokens_per_second, 1)} against {text.number(baseline.tokens_per_second, 1)} tokens/s, "
        f"{rule.confidence:.0%} interval {text.interval(best.gain.low, best.gain.high)}, {best.gain.waves} waves)"
    )
