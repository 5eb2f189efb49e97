"""Training does not change with the rows that it cannot use, and works on quantised features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.drafters.dflash.params import Params
from specflow.features.reader import FeatureReader
from tests.stages.test_train import PARAMS, run
from tests.stages.train_helpers import make_target, write_features

SHORT = PARAMS.model_copy(
    update={"train": PARAMS.train.model_copy(update={"steps": 12, "evaluate_every": 4, "soft_targets": 0.5})}
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"))


def trained(path: Path, target: Path, params: Params = SHORT, **form: Any) -> tuple[bytes, list[Any]]:
    features = write_features(path / "features", target, tail=5, form=form)
    _, context = run(path, target, features, params)
    lines = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "anchors_per_second", "context_tokens_per_second")
    curve = [{k: v for k, v in line.items() if k not in timed} for line in lines]
    return (context.output / "drafter" / "model.safetensors").read_bytes(), curve


def test_usable_rows_train_the_same_drafter_bit_for_bit(tmp_path: Path, target: Path) -> None:
    all_rows = trained(tmp_path / "all", target, rows="all")
    usable = trained(tmp_path / "usable", target, rows="usable")
    assert usable == all_rows
    kept = [FeatureReader(tmp_path / name / "features").document(0) for name in ("all", "usable")]
    assert [d.features_TKH.shape[0] for d in kept] == [24, 18]
    assert torch.equal(kept[1].features_TKH, kept[0].features_TKH[:18])
    assert torch.equal(kept[1].token_ids_T, kept[0].token_ids_T)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_quantised_features_train(tmp_path: Path, target: Path, dtype: str) -> None:
    plain = trained(tmp_path / "plain", target)
    weights, curve = trained(tmp_path / "small", target, dtype=dtype, rows="usable")
    assert weights != plain[0]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (plain[1], curve)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
