"""The sentence on selector and backbone follows from the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.reporting.collect import DrafterResult
from specflow.reporting.curves import read_curves
from specflow.reporting.html import training_note
from specflow.reporting.selector import selector_note


def row(backbone: int, selector: int, **more: Any) -> dict[str, Any]:
    return {
        "step": 5,
        "tau": 3.25,
        "alternatives": {"oracle": {"tau": 4.5}, "backbone": {"tau": 2.75}},
        "selector": {
            "candidates": 16,
            "recall_per_position": [0.98, 0.875, None],
            "accuracy_per_position": [0.9, 0.5, None],
            "ended_by_backbone": backbone,
            "ended_by_selector": selector,
        },
        **more,
    }


@pytest.mark.parametrize(
    ("backbone", "selector", "said"),
    [
        (30, 10, "Of 40 rounds that ended at a wrong proposal, 75 % lacked the right token among the candidates and "
                 "25 % chose another one: the backbone is the limit."),
        (10, 30, "25 % lacked the right token among the candidates and 75 % chose another one: the selector is the"),
        (5, 5, "backbone and selector limit it alike"),
        (0, 0, "No round ended at a wrong proposal."),
    ],
)  # fmt: skip
def test_the_limit_is_what_ends_most_rounds(backbone: int, selector: int, said: str) -> None:
    note = selector_note(row(backbone, selector))
    assert said in note
    assert "walks to tau 3.25; the backbone's first choices reach 2.75, the best path among the candidates 4.50" in note
    assert "in 98 %, 88 %, – of the rounds by position, and is then chosen in 90 %, 50 %, –" in note


def test_it_stands_in_the_report_for_the_kept_step(tmp_path: Path) -> None:
    lines = [row(1, 9, tau=2.0, step=2), row(9, 1), row(5, 5, step=9), {"step": 9, "loss": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drafter = DrafterResult(name="d", curves=read_curves(tmp_path / "metrics.jsonl"))
    assert "90 % lacked" in training_note(drafter)
    assert selector_note({"step": 1, "tau": 2.0}) == ""
