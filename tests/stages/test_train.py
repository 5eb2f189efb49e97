"""The train stage on a tiny target: payload, and refusals that name both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.drafters.dflash.params import Params
from specflow.features.contract import FeatureContract
from specflow.stages import train as stage
from specflow.stages.contract import StageError
from tests.stages.train_helpers import FINGERPRINT, FakeContext, make_target, write_features
from tests.stages.train_helpers import run as run_stage

torch.set_num_threads(1)
PARAMS = Params(
    method="dflash",
    num_layers=1,
    block_size=4,
    train=TrainParams(
        steps=30, documents_per_step=4, learning_rate=3e-3, evaluate_every=10, softmax_tokens=64, threads=1
    ),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    return write_features(tmp_path_factory.mktemp("features"), target, fingerprint=FINGERPRINT)


def run(tmp_path: Path, target: Path, features: Path, params: Params = PARAMS) -> tuple[Any, FakeContext]:
    return run_stage(tmp_path, target, features, params)


def test_payload_and_metrics(tmp_path: Path, target: Path, features: Path) -> None:
    from specflow.drafters.loading import load_network

    metrics, context = run(tmp_path, target, features)
    manifest = json.loads((context.output / "drafter" / "manifest.json").read_text())
    contract = FeatureContract.read(features / "contract.json")
    assert manifest == {
        "method": "dflash",
        "block_size": 4,
        "num_proposals": 3,
        "sample_from_anchor": False,
        "layer_ids": [0, 2],
        "layer_convention": "output_of_layer",
        "mask_token": "<|unused|>",
        "mask_token_id": manifest["mask_token_id"],
        "feature_contract": contract.hash,
        "target_fingerprint": FINGERPRINT,
        "lineage": manifest["lineage"],
    }
    config = json.loads((context.output / "drafter" / "config.json").read_text())
    assert config["mask_token_id"] == manifest["mask_token_id"]
    assert (config["hidden_size"], config["num_kv_heads"], config["head_dim"]) == (64, 2, 16)
    assert load_network(context.output).geometry.block_size == 4  # type: ignore[union-attr]
    rows = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "tau" in r] == [0, 10, 20, 30]
    assert [r["step"] for r in rows if "loss" in r] == [10, 20, 30]
    assert rows[-1]["by_kind"].keys() == {"broad", "service"}
    best = max((r for r in rows if "tau" in r), key=lambda r: (r["tau"], -r["step"]))
    assert (metrics["best_step"], metrics["tau_heldout"]) == (best["step"], best["tau"])
    assert metrics["alignment"] >= 0.99
    assert metrics["train_documents"] == 6
    assert metrics["documents_without_anchor"] == 0
    assert metrics["anchors"] == 30 * 4 * 16
    json.dumps(metrics, allow_nan=False)


def test_features_of_another_target_are_refused(tmp_path: Path, target: Path) -> None:
    other = write_features(tmp_path / "f", target, fingerprint={**FINGERPRINT, "weights_sha256": "others"})
    with pytest.raises(StageError, match="weights_sha256: target weights, features others"):
        run(tmp_path, target, other)


def test_only_greedy_documents_are_judged(tmp_path: Path, target: Path) -> None:
    mixed = write_features(tmp_path / "f", target, fingerprint=FINGERPRINT, sampled=(1, 2, 3))
    metrics, _ = run(tmp_path / "mixed", target, mixed)
    assert metrics["alignment"] >= 0.99
    none = write_features(tmp_path / "g", target, fingerprint=FINGERPRINT, sampled=range(6))
    with pytest.raises(StageError, match="the target's own greedy ones, found none"):
        run(tmp_path / "none", target, none)


@pytest.mark.parametrize("shift", [1, -1])
def test_shifted_hidden_states_are_refused(tmp_path: Path, target: Path, shift: int) -> None:
    shifted = write_features(tmp_path / "f", target, fingerprint=FINGERPRINT, shift=shift)
    with pytest.raises(StageError, match="expected the stored last_hidden to predict at least 99%"):
        run(tmp_path, target, shifted)


def test_uncaptured_layers_and_bad_mask_tokens_are_refused(tmp_path: Path, target: Path, features: Path) -> None:
    with pytest.raises(StageError, match=r"captured layers \[0, 2\], found \[1\]"):
        run(tmp_path, target, features, PARAMS.model_copy(update={"layer_ids": (0, 1)}))
    with pytest.raises(StageError, match="begins, ends or pads"):
        run(tmp_path, target, features, PARAMS.model_copy(update={"mask_token": "<|im_end|>"}))


def test_a_mask_token_that_texts_contain_is_refused(tmp_path: Path, target: Path, features: Path) -> None:
    from transformers import AutoTokenizer

    from specflow.features.reader import FeatureReader

    first = int(FeatureReader(features).document(0).token_ids_T[0])
    token = AutoTokenizer.from_pretrained(target).convert_ids_to_tokens(first)
    with pytest.raises(StageError, match="expected a mask token that no text contains"):
        run(tmp_path, target, features, PARAMS.model_copy(update={"mask_token": token}))


def test_a_subset_of_the_captured_layers(tmp_path: Path, target: Path, features: Path) -> None:
    short = PARAMS.train.model_copy(update={"steps": 2, "initialise": "random"})
    _, context = run(tmp_path, target, features, PARAMS.model_copy(update={"layer_ids": (2,), "train": short}))
    assert json.loads((context.output / "drafter" / "manifest.json").read_text())["layer_ids"] == [2]
    assert "random weights, as asked" in context.messages


def test_planning_needs_no_heavy_import() -> None:
    import subprocess
    import sys

    code = "import sys, specflow.stages.train; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_check_and_estimate() -> None:
    assert list(stage.check(PARAMS)) == []
    found = stage.estimate(PARAMS).seconds
    assert found is not None
    assert found > 0
