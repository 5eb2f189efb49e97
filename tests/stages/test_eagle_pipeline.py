"""An EAGLE drafter from features to export: greedy outputs are plain decoding's, chains and trees; verify passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.config.drafter import TrainParams
from specflow.config.export import ExportParams
from specflow.config.tree import TreeParams
from specflow.config.verify import LosslessParams, VerifyParams
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.speculative import decode_speculative_batch
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Expands, Samples
from specflow.drafters.eagle.params import Params
from specflow.drafters.loading import load_drafter
from specflow.stages import capture, export, train, verify
from specflow.stages.contract import Artifact, StageError
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target

torch.set_num_threads(1)
TREE = TreeParams(steps=3, topk=3, num_draft_tokens=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("eagle")
    target = tiny_target(root)
    loaded = Target.load(target.path, precision="fp32", threads=1)
    tokens = tokens_artifact(root / "tokens", greedy_documents(loaded, answer=12))
    captured = FakeContext(root / "capture")
    capture.run(inputs(target, tokens), CaptureParams(layer_ids=(0, 2), precision="fp32", threads=1), captured)
    features = artifact("features", captured.output)
    options: dict[str, Any] = {"steps": 30, "documents_per_step": 4, "learning_rate": 4e-3, "evaluate_every": 30}
    params = Params(
        method="eagle", draft_steps=4, draft_vocab_size=280, noise=0.01, train=TrainParams(**options, threads=1)
    )
    context = FakeContext(root / "train")
    train.run(inputs(target, features), params, context)
    drafter = artifact("drafter", context.output)
    return {"target": target, "tokens": tokens, "features": features, "drafter": drafter}


@pytest.fixture(scope="module")
def target(made: dict[str, Artifact]) -> Target:
    return Target.load(made["target"].path, precision="fp32", threads=1)


@pytest.mark.parametrize("tree", [None, TreeShape(**TREE.model_dump())])
def test_outputs_equal_plain_decoding_in_a_mixed_batch(
    made: dict[str, Artifact], target: Target, tree: TreeShape | None
) -> None:
    proposer = load_drafter(made["drafter"].path, target)
    assert isinstance(proposer, Samples)
    assert isinstance(proposer, Expands)
    prompts = [[5], [7, 8], [200, 3, 90, 4], [11, 12, 13]]
    sampling = [GREEDY, Sampling(temperature=1.0, draft_temperature=1.0, seed=1), GREEDY, Sampling(temperature=0.7)]
    plain = decode_plain(target, prompts, max_new_tokens=16)
    found, alone = (
        decode_speculative_batch(
            target, proposer, prompts, max_new_tokens=16, sampling=sampling, batch_size=size, tree=tree
        )
        for size in (4, 1)
    )
    for index in (0, 2):
        assert found[index].tokens == plain[index].tokens
    assert [g.tokens for g in found] == [g.tokens for g in alone]
    assert sum(r.accepted for g in found for r in g.rounds) > 0


@pytest.mark.parametrize(("dtype", "tree"), [("float32", None), ("bfloat16", TREE)])
def test_export_and_verify(made: dict[str, Artifact], tmp_path: Path, dtype: Any, tree: TreeParams | None) -> None:
    context = FakeContext(tmp_path / "export")
    export.run(inputs(made["target"], made["drafter"]), ExportParams(dtype=dtype, tree=tree), context)
    flags = json.loads((context.output / "launch.json").read_text())["flags"]
    assert flags["--speculative-algorithm"] == "EAGLE"
    assert flags["--speculative-token-map"] == "draft/hot_tokens.pt"
    sizes = [flags[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert sizes == (["4", "1", "5"] if tree is None else ["3", "3", "8"])
    stated = json.loads((context.output / "draft/manifest.json").read_text()).get("tree")
    assert stated == (tree and tree.model_dump())
    checked = FakeContext(tmp_path / "verify")
    given = inputs(
        made["target"], made["drafter"], artifact("export", context.output), made["features"], made["tokens"]
    )
    lossless = LosslessParams(enabled=True, samples=50, temperatures=(1.0,), alphabet=6, answer_tokens=2)
    params = VerifyParams(
        max_new_tokens=12, documents=3, anchors_per_document=12, batch_size=24, threads=1, precision="fp32",
        near_tie=0.0, tree=tree, lossless=lossless,
    )  # fmt: skip
    verify.run(given, params, checked)
    record = json.loads((checked.output / "verification.json").read_text())
    assert record["passed"]
    checks = {c["name"]: c["numbers"] for c in record["checks"]}
    assert checks["export"]["blocks_not_bit_equal_after_cast"] == 0
    assert checks["train-serve"]["differing_proposals"] == 0
    assert checks["lossless"]["accepted_per_round"] > 0


def test_a_tree_that_sglang_would_draft_otherwise_is_refused(made: dict[str, Artifact], tmp_path: Path) -> None:
    short = TreeParams(steps=4, topk=1, num_draft_tokens=3)
    with pytest.raises(StageError, match="a tree of topk 1 is a chain: expected num_draft_tokens"):
        export.run(inputs(made["target"], made["drafter"]), ExportParams(tree=short), FakeContext(tmp_path))
