"""An EAGLE-3 drafter from features to export: it memorises, its free walk in the engine is accepted, verify passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.config.drafter import TrainParams
from specflow.config.export import ExportParams
from specflow.config.verify import VerifyParams
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.speculative import decode_speculative_batch
from specflow.drafters.base import Expands, Samples
from specflow.drafters.eagle3 import method as eagle3
from specflow.drafters.eagle3.params import LossParams, Params
from specflow.drafters.loading import load_drafter
from specflow.drafters.registry import Facts
from specflow.drafters.target_weights import TargetWeights
from specflow.features.store import FeatureReader
from specflow.stages import capture, export, train, verify
from specflow.stages.contract import Artifact
from specflow.targets.target import Target
from specflow.training.data import Documents
from specflow.training.frozen import FrozenEnds
from specflow.training.loop import Trainer
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target
from tests.training.helpers import Monitor

torch.set_num_threads(1)
STEPS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("eagle3")
    target = tiny_target(root)
    loaded = Target.load(target.path, precision="fp32", threads=1)
    tokens = tokens_artifact(root / "tokens", greedy_documents(loaded, answer=12))
    captured = FakeContext(root / "capture")
    capture.run(inputs(target, tokens), CaptureParams(layer_ids=(0, 1, 2), precision="fp32", threads=1), captured)
    features = artifact("features", captured.output)
    options: dict[str, Any] = {"steps": 10, "documents_per_step": 4, "learning_rate": 4e-3, "evaluate_every": 10}
    params = Params(
        method="eagle3", draft_steps=STEPS, ttt_length=5, draft_vocab_size=280, train=TrainParams(**options, threads=1)
    )
    context = FakeContext(root / "train")
    train.run(inputs(target, features), params, context)
    drafter = artifact("drafter", context.output)
    return {"target": target, "tokens": tokens, "features": features, "drafter": drafter}


@pytest.fixture(scope="module")
def target(made: dict[str, Artifact]) -> Target:
    return Target.load(made["target"].path, precision="fp32", threads=1)


def test_a_memorised_text_is_accepted_whole_and_equals_plain_decoding(
    made: dict[str, Artifact], target: Target, tmp_path: Path
) -> None:
    reader, weights = FeatureReader(made["features"].path), TargetWeights(made["target"].path)
    documents, texts = Documents(reader, columns=[0, 1, 2], last_hidden=True), reader.indices("train")[:4]
    options: dict[str, Any] = {"steps": 150, "documents_per_step": 4, "learning_rate": 4e-3, "evaluate_every": 75}
    given: dict[str, Any] = {"draft_steps": STEPS, "ttt_length": 5, "loss": LossParams(kind="ce")}
    params = Params(method="eagle3", **given, train=TrainParams(**options, threads=1))
    network = eagle3.new_network(params, Facts(config=weights.config, layer_ids=(0, 1, 2)))
    assert "last 1 layers" in eagle3.initialise(network, params, weights, torch.empty(0))
    # Held out are the texts it is trained on: the weights that know them best are kept.
    Trainer(
        method=eagle3,
        network=network,
        ends=FrozenEnds.of_target(weights, softmax_tokens=torch.arange(300)),
        documents=documents,
        train=texts,
        heldout=texts,
        params=params,
        scratch=tmp_path,
        monitor=Monitor(),
    ).run()
    stored = [reader.document(i) for i in texts]
    prompts = [d.token_ids_T[: int(d.supervised_T.nonzero()[0])].tolist() for d in stored]
    proposer = eagle3.build_proposer(network, target, precision="fp32")
    plain = decode_plain(target, prompts, max_new_tokens=12)
    found = decode_speculative_batch(target, proposer, prompts, max_new_tokens=12, batch_size=3)
    assert [g.tokens for g in found] == [g.tokens for g in plain]
    rounds = [r for g in found for r in g.rounds[:-1]]  # the last one may be cut
    assert sum(r.accepted for r in rounds) == sum(r.proposed for r in rounds) > 0


def test_other_prompts_equal_plain_decoding_in_a_mixed_batch(made: dict[str, Artifact], target: Target) -> None:
    proposer = load_drafter(made["drafter"].path, target)
    assert isinstance(proposer, Samples)
    assert isinstance(proposer, Expands)
    prompts = [[5], [7, 8], [200, 3, 90, 4], [11, 12, 13]]
    sampling = [GREEDY, Sampling(temperature=1.0, draft_temperature=1.0, seed=1), GREEDY, Sampling(temperature=0.7)]
    plain = decode_plain(target, prompts, max_new_tokens=16)
    found, alone = (
        decode_speculative_batch(target, proposer, prompts, max_new_tokens=16, sampling=sampling, batch_size=size)
        for size in (4, 1)
    )
    for index in (0, 2):
        assert found[index].tokens == plain[index].tokens
    assert [g.tokens for g in found] == [g.tokens for g in alone]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_and_verify(made: dict[str, Artifact], tmp_path: Path, dtype: Any) -> None:
    context = FakeContext(tmp_path / "export")
    export.run(inputs(made["target"], made["drafter"]), ExportParams(dtype=dtype), context)
    made_export = artifact("export", context.output)
    launch = json.loads((context.output / "launch.json").read_text())
    assert launch["flags"]["--speculative-algorithm"] == "EAGLE3"
    checked = FakeContext(tmp_path / "verify")
    given = inputs(made["target"], made["drafter"], made_export, made["features"], made["tokens"])
    params = VerifyParams(max_new_tokens=12, documents=3, anchors_per_document=12, batch_size=2, threads=1)
    verify.run(given, params.model_copy(update={"precision": "fp32", "near_tie": 0.0}), checked)
    record = json.loads((checked.output / "verification.json").read_text())
    assert record["passed"]
    assert {c["name"] for c in record["checks"]} >= {"alignment", "export", "train-serve"}
