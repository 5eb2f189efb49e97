"""The gate's arithmetic against a plain loop, and every way in which a drafter is not promoted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.reporting.decision import Candidate, Decision, Rule, decide
from specflow.reporting.gain import gain
from specflow.reporting.measure import BOOTSTRAP_SAMPLES

RULE = Rule(margin=0.05, confidence=0.95, concurrency=4, min_waves=5, certificate=True)


def waves(mode: str, seconds: list[float], *, repeats: int = 1, tokens: int = 100) -> list[dict[str, Any]]:
    return [
        {"mode": mode, "concurrency": 4, "number": n, "repeat": r, "tokens": tokens, "seconds": s}
        for n, s in enumerate(seconds)
        for r in range(repeats)
    ]


@given(
    st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=2, max_size=6),
    st.integers(1, 3),
    st.sampled_from([0.8, 0.95]),
)
def test_gain_is_that_of_a_plain_loop(times: list[tuple[float, float]], repeats: int, confidence: float) -> None:
    own, other = ([pair[i] for pair in times] for i in (0, 1))
    rows = [*waves("x", own, repeats=repeats), *waves("y", other, repeats=repeats, tokens=50)]
    found = gain(rows, "x", "y", concurrency=4, confidence=confidence)
    assert found.ratio == pytest.approx((100 / sum(own)) / (50 / sum(other)))
    drawn = np.random.default_rng(0).integers(0, len(times), size=(BOOTSTRAP_SAMPLES, len(times)))
    ratios = sorted(2 * sum(other[i] for i in row) / sum(own[i] for i in row) for row in drawn)
    low, high = np.percentile(ratios, [50 * (1 - confidence), 50 * (1 + confidence)])
    assert (found.low, found.high, found.waves) == (pytest.approx(low), pytest.approx(high), len(times))


def test_modes_of_different_waves_are_not_compared() -> None:
    with pytest.raises(ValueError, match="the same waves with 4 in flight, found 2 and 3"):
        gain([*waves("x", [1, 1]), *waves("y", [1, 1, 1])], "x", "y", concurrency=4)


def row(mode: str, rate: float, tau: float | None = 2.0) -> dict[str, Any]:
    return {"mode": mode, "concurrency": 4, "tokens_per_second": rate, "tau": tau}


def candidate(name: str, certificate: Any = "passed") -> Candidate:
    return Candidate(name=name, drafter=name * 8, export="e", certificate=certificate)


def judged(times: dict[str, list[float]], *candidates: Candidate, rule: Rule = RULE, **given: Any) -> Decision:
    rows = [row(mode, 100 * len(t) / sum(t), None if mode == "plain" else 2.0) for mode, t in times.items()]
    found = [wave for mode, t in times.items() for wave in waves(mode, t)]
    return decide({"rows": rows, "waves": found}, candidates, rule, **given)


SLOW, QUICK = [2.0, 2.2, 1.8, 2.0, 2.1], [1.0, 1.1, 0.9, 1.0, 1.05]


def test_a_quicker_drafter_is_promoted_over_plain_decoding_and_over_the_promoted_one() -> None:
    found = judged({"plain": SLOW, "new": QUICK}, candidate("new"))
    assert found.promote
    assert found.reason.startswith(
        "new is 2.00× as quick as plain decoding with 4 in flight (99.0 against 49.5 tokens/s"
    )
    assert (found.baseline.drafter, found.baseline.mode) == (None, "plain")
    found = judged(
        {"plain": SLOW, "promoted": [1.5] * 5, "new": QUICK}, candidate("new"), incumbent=("promoted", "k" * 64)
    )
    assert found.promote
    assert "the promoted drafter kkkkkkkkkkkk" in found.reason
    assert found.best.gain is not None
    assert found.best.gain.ratio == pytest.approx(7.5 / sum(QUICK))


def test_quicker_than_plain_decoding_is_not_enough_beside_a_promoted_drafter() -> None:
    times = {"plain": SLOW, "promoted": QUICK, "new": [t * 0.98 for t in QUICK]}
    found = judged(times, candidate("new"), incumbent=("promoted", "k" * 64))
    assert not found.promote
    assert found.reason.endswith("its lower end must reach 1.050")


def test_a_gain_that_may_be_chance_is_not_enough() -> None:
    noisy = {"plain": [1.0, 3.0, 0.5, 2.0, 4.0], "new": [2.0, 0.6, 1.4, 1.0, 3.0]}
    found = judged(noisy, candidate("new"))
    assert found.best.gain is not None
    assert found.best.gain.ratio > 1.3
    assert not found.promote


def test_few_waves_say_nothing() -> None:
    found = judged({"plain": SLOW[:4], "new": QUICK[:4]}, candidate("new"))
    assert not found.promote
    assert found.reason == "4 waves were measured, from which nothing is concluded; gate.min_waves is 5"
    assert not judged({"plain": SLOW[:1], "new": QUICK[:1]}, candidate("new")).promote


@pytest.mark.parametrize("certificate", ["failed", "absent"])
def test_without_a_certificate_nothing_is_promoted(certificate: str) -> None:
    found = judged({"plain": SLOW, "new": QUICK}, candidate("new", certificate))
    assert not found.promote
    assert f"no certificate that sampling is not changed: {certificate}" in found.reason
    allowed = judged(
        {"plain": SLOW, "new": QUICK}, candidate("new", certificate),
        rule=Rule(margin=0.05, confidence=0.95, concurrency=4, min_waves=5, certificate=False),
    )  # fmt: skip
    assert allowed.promote == (certificate == "absent"), "one that failed is never promoted"


def test_the_quickest_certified_drafter_is_judged_with_its_quickest_mode() -> None:
    times = {"plain": SLOW, "a": [1.5] * 5, "a+tree": [1.2] * 5, "b": [1.0] * 5, "c": [1.4] * 5}
    found = judged(times, candidate("a"), candidate("b", "failed"), candidate("c"))
    assert (found.best.name, found.best.mode, found.promote) == ("a", "a+tree", True)


def test_a_comparison_without_the_concurrency_is_refused() -> None:
    with pytest.raises(ValueError, match=r"with 4 in flight, found \[8\]"):
        decide({"rows": [{**row("plain", 1.0), "concurrency": 8}], "waves": []}, [candidate("a")], RULE)
    with pytest.raises(ValueError, match="expected 'a' in the comparison, found plain"):
        judged({"plain": SLOW}, candidate("a"))
