"""The train stage on a tiny target: payload, and refusals that name both sides."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.drafters.dflash.params import Params
from specflow.features.contract import FeatureContract
from specflow.features.document import Document
from specflow.features.store import FeatureWriter
from specflow.stages import train as stage
from specflow.stages.contract import Artifact, Inputs, StageError
from specflow.targets.tiny import make_tiny_target

torch.set_num_threads(1)
FINGERPRINT = {f"{n}_sha256": n for n in ("weights", "config", "tokenizer", "template")}
PARAMS = Params(
    method="dflash",
    num_layers=1,
    block_size=4,
    train=TrainParams(
        steps=30, documents_per_step=4, learning_rate=3e-3, evaluate_every=10, softmax_tokens=64, threads=1
    ),
)


@dataclass
class Bar:
    def advance(self, amount: float = 1) -> None: ...
    def describe(self, text: str) -> None: ...
    def figures(self, values: Mapping[str, float]) -> None: ...


@dataclass
class FakeContext:
    output: Path
    scratch: Path
    item: str | None = "tiny"
    messages: list[str] = field(default_factory=list)

    def log(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Bar]:
        yield Bar()


def write_features(
    path: Path, target: Path, *, fingerprint: dict[str, str], shift: int = 0, sampled: Collection[int] = ()
) -> Path:
    """Greedy answers of the target with their features; ``shift`` moves ``last_hidden`` by rows.

    Documents in ``sampled`` have other answers, and say so.
    """
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    made = []
    for index in range(8):
        ids = torch.randint(0, 200, (1, 6), generator=torch.Generator().manual_seed(index))
        with torch.no_grad():
            for _ in range(18):
                ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
            if index in sampled:
                ids[:, 6:] = (ids[:, 6:] + 1) % 200
            states = model.model(ids, output_hidden_states=True)
        supervised = torch.zeros(24, dtype=torch.bool)
        supervised[6:] = True
        features = torch.stack([states.hidden_states[k + 1][0] for k in (0, 2)], dim=1)
        made.append(
            Document(
                index=index,
                split="heldout" if index >= 6 else "train",
                kind="service" if index % 2 else "broad",
                id=f"d{index}",
                greedy=index not in sampled,
                token_ids_T=ids[0],
                supervised_T=supervised,
                features_TKH=features.bfloat16(),
                last_hidden_TH=torch.roll(states.last_hidden_state[0], shift, dims=0).bfloat16(),
            )
        )
    contract = FeatureContract.for_target(fingerprint, layer_ids=(0, 2), hidden_size=64, precision="fp32")
    writer = FeatureWriter(path, contract)
    writer.write(0, made)
    writer.finish(1)
    return path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tiny_target(tmp_path_factory.mktemp("target"), 1)
    (path / "fingerprint.json").write_text(json.dumps(FINGERPRINT))
    return path


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    return write_features(tmp_path_factory.mktemp("features"), target, fingerprint=FINGERPRINT)


def run(tmp_path: Path, target: Path, features: Path, params: Params = PARAMS) -> tuple[Any, FakeContext]:
    context = FakeContext(tmp_path / "output", tmp_path / "scratch")
    for path in (context.output, context.scratch):
        path.mkdir(parents=True, exist_ok=True)
    artifacts = (
        Artifact(kind="target", key="t" * 64, path=target),
        Artifact(kind="features", key="f" * 64, path=features),
    )
    return stage.run(Inputs(artifacts), params, context), context


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
