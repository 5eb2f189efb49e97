"""What a calibration is worth: every measure per position, before and after, on the rounds that judged it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from specflow.calibration.measures import (
    Floats,
    area_under_curve,
    brier_score,
    expected_calibration_error,
    reliability,
)
from specflow.calibration.records import ConfidenceRecords
from specflow.calibration.sts import FitRules, StsFit, survival_of


def calibration_report(fitted: StsFit, rules: FitRules) -> dict[str, Any]:
    """``rules``, ``rounds`` and ``positions``; measures of the cumulative survival, on the validation rounds."""
    judged = fitted.validation
    before = _measures(judged, survival_of(judged.logits_NM), rules)
    after = _measures(judged, survival_of(judged.logits_NM, fitted.temperatures), rules)
    rows = zip(fitted.positions, before, after, strict=True)
    return {
        "rules": asdict(rules),
        "rounds": {"fit": fitted.fit.rounds, "validation": judged.rounds},
        "requests": {
            "fit": len(np.unique(fitted.fit.request_N)),
            "validation": len(np.unique(judged.request_N)),
        },
        "positions": [
            {"position": i + 1, **asdict(found), "before": first, "after": second}
            for i, (found, first, second) in enumerate(rows)
        ],
    }


def _measures(records: ConfidenceRecords, survival_NM: Floats, rules: FitRules) -> list[dict[str, Any]]:
    rows = []
    for i in range(records.num_proposals):
        probability_N, happened_N = survival_NM[:, i], records.accepted_N > i
        rows.append(
            {
                "ece": expected_calibration_error(probability_N, happened_N, bins=rules.bins),
                "brier": brier_score(probability_N, happened_N),
                "auc": area_under_curve(probability_N, happened_N),
                "reliability": [asdict(b) for b in reliability(probability_N, happened_N, bins=rules.bins)],
            }
        )
    return rows


def calibration_table(positions: Sequence[dict[str, Any]]) -> str:
    """One line per position, for a log."""
    lines = ["position  temperature   95 % interval     ECE before  after    Brier before  after    AUC   why"]
    for row in positions:
        first, second = row["before"], row["after"]
        auc = "  -  " if second["auc"] is None else f"{second['auc']:.3f}"
        lines.append(
            f"{row['position']:>8}  {row['temperature']:>11.3f}  {row['low']:>7.3f} to {row['high']:<7.3f}  "
            f"{first['ece']:>10.4f}  {second['ece']:.4f}  {first['brier']:>12.4f}  {second['brier']:.4f}  "
            f"{auc}  {row['reason']}"
        )
    return "\n".join(lines)
