"""Benchmark arithmetic against figures worked out by hand."""

from __future__ import annotations

import pytest

from specflow.decoding.records import Generation, Round
from specflow.reporting.measure import Pair, acceptance, by_kind, rate, round_seconds, speedup, summarise, tau


def round_of(proposed: int, accepted: int, delivered: int, seconds: float = 0.0) -> Round:
    return Round(
        proposed=proposed,
        accepted=accepted,
        delivered=delivered,
        draft_seconds=seconds,
        verify_seconds=4 * seconds,
        state_seconds=2 * seconds,
        other_seconds=3 * seconds,
    )


def generation(tokens: int, seconds: float, rounds: list[Round] | None = None, prefill: float = 0.5) -> Generation:
    return Generation(
        prompt_length=3,
        tokens=list(range(tokens)),
        finish="length",
        prefill_seconds=prefill,
        decode_seconds=seconds,
        rounds=rounds or [],
    )


def pair(name: str, kind: str, *, plain_seconds: float, fast_seconds: float, tokens: int = 11) -> Pair:
    rounds = [round_of(3, 3, 4, 0.01), round_of(3, 1, 2, 0.01), round_of(3, 3, 4, 0.03)]
    return Pair(
        id=name,
        kind=kind,
        plain=[generation(tokens, plain_seconds)],
        speculative=[generation(tokens, fast_seconds, rounds)],
    )


def test_tau_counts_delivered_tokens_only() -> None:
    # The last round accepted 3 and would have delivered 4; an end token cut it to 2.
    assert tau([generation(8, 1.0, [round_of(3, 3, 4), round_of(3, 0, 1), round_of(3, 3, 2)])]) == pytest.approx(7 / 3)
    assert tau([]) is None


def test_acceptance_is_before_the_cut_and_counts_only_rounds_that_proposed_so_far() -> None:
    found = acceptance(
        [
            generation(5, 1.0, [round_of(3, 3, 2), round_of(3, 1, 2)]),
            generation(4, 1.0, [round_of(3, 0, 1), round_of(1, 1, 2)]),
        ]
    )
    assert found["judged"] == [4, 3, 3]
    assert found["accepted"] == [3, 1, 1]
    assert found["cumulative"] == [3 / 4, 1 / 3, 1 / 3]
    # Position 2 was reached by the rounds of 3 that accepted at least one: two; position 3 by one.
    assert found["conditional"] == [3 / 4, 1 / 2, 1 / 1]


def test_rates_leave_the_first_token_to_prefill() -> None:
    found = rate([generation(11, 2.0), generation(1, 0.0), generation(21, 4.0)])
    assert (found.tokens, found.decode_tokens) == (33, 30)
    assert found.per_second == pytest.approx(30 / 6.0)
    assert found.per_second_with_prefill == pytest.approx(33 / 7.5)


def test_rate_without_decode_time_is_none() -> None:
    assert rate([generation(1, 0.0)]).per_second is None


def test_round_split_is_a_mean_whose_parts_add_up() -> None:
    found = round_seconds([round_of(3, 0, 1, 0.01), round_of(3, 0, 1, 0.03)])
    assert found is not None
    assert found == pytest.approx({"draft": 0.02, "verify": 0.08, "state": 0.04, "other": 0.06, "total": 0.2})


def test_speedup_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    pairs = [
        pair("a", "x", plain_seconds=10.0, fast_seconds=2.0),  # 5 times
        pair("b", "x", plain_seconds=1.0, fast_seconds=1.0),  # equal
        pair("c", "x", plain_seconds=1.0, fast_seconds=2.0),  # slower
    ]
    found = speedup(pairs)
    assert found is not None
    assert found["ratio"] == pytest.approx(12.0 / 5.0)
    assert found["median_of_prompts"] == pytest.approx(1.0)
    assert found["prompts_slower"] == 1
    assert found["with_prefill"] == pytest.approx(13.5 / 6.5)


def test_bootstrap_is_deterministic_and_contains_the_ratio() -> None:
    pairs = [pair(str(i), "x", plain_seconds=2.0 + 0.1 * (i % 5), fast_seconds=1.0 + 0.05 * (i % 3)) for i in range(30)]
    first, second = speedup(pairs), speedup(pairs)
    assert first == second
    assert first is not None
    assert first["low"] < first["ratio"] < first["high"]
    assert first["high"] - first["low"] < 0.2
    other = speedup(pairs, seed=1)
    assert other is not None
    assert other["low"] != first["low"]
    assert other["ratio"] == first["ratio"]


def test_equal_prompts_give_an_interval_of_no_width() -> None:
    found = speedup([pair(str(i), "x", plain_seconds=3.0, fast_seconds=2.0) for i in range(5)])
    assert found is not None
    assert (found["low"], found["high"]) == pytest.approx((1.5, 1.5))


def test_no_baseline_no_speedup() -> None:
    assert speedup([pair("a", "x", plain_seconds=0.0, fast_seconds=1.0)]) is None
    assert speedup([]) is None
    assert summarise([])["tau"] is None


def test_predicted_time_per_token_uses_the_runs_round_and_the_kinds_tau() -> None:
    slow_rounds = Pair(
        id="b",
        kind="y",
        plain=[generation(3, 1.0)],
        speculative=[generation(3, 1.0, [round_of(3, 0, 1, 0.05), round_of(3, 0, 1, 0.05)])],
    )
    total, kinds = by_kind([slow_rounds, pair("a", "x", plain_seconds=2.0, fast_seconds=1.0)])
    mean_round = (0.5 + 0.5 + 0.1 + 0.1 + 0.3) / 5
    assert total["round_seconds"]["total"] == pytest.approx(mean_round)
    assert list(kinds) == ["x", "y"]
    assert kinds["x"]["seconds_per_token"]["predicted"] == pytest.approx(mean_round / (10 / 3))
    assert kinds["y"]["seconds_per_token"]["predicted"] == pytest.approx(mean_round / 1.0)
    assert total["seconds_per_token"]["predicted"] == pytest.approx(mean_round / (12 / 5))
    assert kinds["x"]["seconds_per_token"]["measured"] == pytest.approx(0.1)
    assert kinds["x"]["seconds_per_token"]["plain"] == pytest.approx(0.2)
