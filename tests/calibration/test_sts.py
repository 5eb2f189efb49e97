"""Sequential temperature scaling on records whose temperatures are known, and its rules on ties and scarcity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specflow.calibration.bootstrap import temperature_interval
from specflow.calibration.measures import BINS, expected_calibration_error
from specflow.calibration.records import ConfidenceRecords, RecordsError, joined
from specflow.calibration.report import calibration_report, calibration_table
from specflow.calibration.split import split_requests
from specflow.calibration.sts import GRID, FitRules, best_of, fit_sts, survival_of
from tests.calibration.synthetic import synthetic

QUICK = FitRules(bootstraps=20)


def test_known_temperatures_are_recovered() -> None:
    truth = [float(GRID[i]) for i in (26, 14, 20, 29)]
    fitted = fit_sts(synthetic(truth, rounds=120_000, shift=2.0), replace(QUICK, bootstraps=10))
    assert fitted.temperatures == pytest.approx(truth, rel=0.05)
    assert fitted.positions[2].reason == "already 1"
    for position, true in zip(fitted.positions, truth, strict=True):
        assert position.low <= true * 1.001
        assert position.high >= true * 0.999


def test_validation_error_falls_where_a_temperature_changes() -> None:
    records = synthetic([3.0, 2.0, 0.5], rounds=6000)
    fitted = fit_sts(records, QUICK)
    report = calibration_report(fitted, QUICK)
    changed = [row for row in report["positions"] if row["temperature"] != 1.0]
    assert len(changed) == 3
    for row in changed:
        assert row["after"]["ece"] < 0.5 * row["before"]["ece"]
        assert row["after"]["brier"] < row["before"]["brier"]
    first = report["positions"][0]
    assert first["after"]["auc"] == pytest.approx(first["before"]["auc"])  # one temperature changes no order
    assert report["rounds"] == {"fit": 3000, "validation": 3000}
    # The figures are those of the validation rounds, with the chosen temperatures.
    judged = fitted.validation
    survival = survival_of(judged.logits_NM, fitted.temperatures)
    assert report["positions"][1]["after"]["ece"] == expected_calibration_error(survival[:, 1], judged.accepted_N > 1)
    assert len(calibration_table(report["positions"]).splitlines()) == 4


def test_a_temperature_is_the_best_of_the_grid_given_those_before_it() -> None:
    records = synthetic([2.0, 0.6], rounds=3000)
    fitted = fit_sts(records, QUICK)
    fit, before = fitted.fit, np.ones(fitted.fit.rounds)
    for i, position in enumerate(fitted.positions):
        errors = [
            expected_calibration_error(
                before / (1 + np.exp(-fit.logits_NM[:, i].astype(float) / t)), fit.accepted_N > i
            )
            for t in GRID
        ]
        assert position.best == GRID[int(np.argmin(errors))]
        before = before / (1 + np.exp(-fit.logits_NM[:, i].astype(float) / position.temperature))


def test_ties_prefer_one_then_the_nearest_to_it() -> None:
    assert GRID[best_of(np.zeros(41))] == 1.0
    errors = np.ones(41)
    errors[[5, 18, 22, 30]] = 0.25
    assert best_of(errors) == 22  # as near to 1 as 18, and the larger
    errors[5] -= 1e-15  # of the order of additions only
    assert best_of(errors) == 22
    errors[5] -= 1e-9
    assert best_of(errors) == 5


def test_logits_of_zero_tie_at_every_temperature() -> None:
    """sigmoid(0 / T) is a half for every T; the smallest T of the grid must not win."""
    records = synthetic([1.0], rounds=400)
    fitted = fit_sts(replace(records, logits_NM=np.zeros_like(records.logits_NM)), QUICK)
    assert (fitted.temperatures, fitted.positions[0].reason) == ((1.0,), "already 1")
    assert (fitted.positions[0].low, fitted.positions[0].high) == (1.0, 1.0)


def test_scarce_positions_keep_one() -> None:
    records = synthetic([3.0, 3.0], rounds=4000)
    fit, _ = split_requests(records, validation_share=0.5, seed=0)
    few = int((fit.accepted_N == 1).sum())
    assert few < int((fit.accepted_N > 1).sum())
    at, above = (fit_sts(records, replace(QUICK, min_events=n)).positions[1] for n in (few, few + 1))
    assert (at.reason, above.reason, above.temperature, above.rejected) == ("fitted", "too few events", 1.0, few)
    assert above.best == at.best > 1.5
    # Everything accepted: the error would be least at a very cold temperature, which says nothing.
    always = replace(records, accepted_N=np.full(records.rounds, 2))
    positions = fit_sts(always, QUICK).positions
    assert [(p.temperature, p.reason) for p in positions] == [(1.0, "too few events")] * 2
    assert max(p.best for p in positions) < 0.3


def test_a_temperature_that_does_not_carry_over_is_not_kept() -> None:
    """Requests of one half are sure of themselves for good reason, those of the other are not."""
    sure, unsure = synthetic([0.4], rounds=2000, per_request=1000), synthetic([3.0], rounds=2000, per_request=1000)
    for seed in range(6):
        rules = replace(QUICK, seed=seed)
        both = joined([sure, unsure])
        fit, _ = split_requests(both, validation_share=0.5, seed=seed)
        if set(np.unique(fit.request_N)) in ({0, 1}, {2, 3}):
            assert fit_sts(both, rules).positions[0].reason == "no gain on validation"
            return
    pytest.fail("no seed split the requests so")


def test_split_is_by_request_and_by_seed() -> None:
    records = synthetic([1.0], rounds=1000, per_request=7)
    fit, validation = split_requests(records, validation_share=0.3, seed=4)
    assert not set(fit.request_N) & set(validation.request_N)
    assert fit.rounds + validation.rounds == 1000
    assert validation.rounds == pytest.approx(300, abs=7)
    again, _ = split_requests(records, validation_share=0.3, seed=4)
    other, _ = split_requests(records, validation_share=0.3, seed=5)
    assert np.array_equal(fit.request_N, again.request_N)
    assert not np.array_equal(fit.request_N, other.request_N)
    with pytest.raises(RecordsError, match="all rounds are of one request"):
        split_requests(records.take(records.request_N == 0), validation_share=0.3, seed=4)


def test_interval_is_that_of_resampled_requests() -> None:
    """Against the same draws, each resample built row by row."""
    records = synthetic([2.0], rounds=300, per_request=10)
    z_N, y_N, before_N = records.logits_NM[:, 0].astype(float), records.accepted_N > 0, np.full(300, 0.9)
    found = temperature_interval(
        z_N, y_N, before_N, records.request_N, grid=GRID, choose=best_of, draws=12, seed=(3, 0), bins=BINS
    )
    drawn = np.random.default_rng((3, 0)).integers(30, size=(12, 30))
    chosen = []
    for requests in drawn:
        rows = np.concatenate([np.flatnonzero(records.request_N == q) for q in requests])
        errors = [expected_calibration_error(before_N[rows] / (1 + np.exp(-z_N[rows] / t)), y_N[rows]) for t in GRID]
        chosen.append(GRID[best_of(np.array(errors))])
    assert found == tuple(np.quantile(chosen, (0.025, 0.975), method="nearest"))


def test_survival() -> None:
    logits = np.array([[0.0, np.log(3.0)]], dtype=np.float32)
    assert survival_of(logits) == pytest.approx(np.array([[0.5, 0.375]]))
    assert survival_of(logits, [1.0, 1e9])[0, 1] == pytest.approx(0.25)
    with pytest.raises(ValueError, match="3 temperatures for 2 proposals"):
        survival_of(logits, [1.0, 1.0, 1.0])


def test_joined_requests_stay_apart() -> None:
    part = ConfidenceRecords(
        logits_NM=np.zeros((3, 1), np.float32), accepted_N=np.zeros(3, np.int64), request_N=np.array([0, 0, 1])
    )
    assert joined([part, part]).request_N.tolist() == [0, 0, 1, 2, 2, 3]
