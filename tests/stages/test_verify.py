"""The verify stage passes a sound drafter and finds each planted defect."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.config.export import ExportParams
from specflow.config.tree import TreeParams
from specflow.config.verify import LosslessParams, VerifyParams
from specflow.drafters.loading import load_drafter, load_network
from specflow.features.store import FeatureReader
from specflow.serving.verification import alignment, blocks, parity
from specflow.stages import export, verify
from specflow.stages.contract import Artifact, StageError
from specflow.targets.target import Target
from tests.serving.helpers import LAYERS, Pipeline, make_pipeline
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs

PARAMS = VerifyParams(max_new_tokens=12, documents=3, anchors_per_document=3, batch_size=2, threads=1)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("verify"))


@pytest.fixture(scope="module")
def target(pipeline: Pipeline) -> Target:
    return Target.load(pipeline.target.path, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def anchors(pipeline: Pipeline) -> list[blocks.Anchor]:
    reader = FeatureReader(pipeline.features.path)
    documents = [reader.document(i) for i in reader.indices("heldout")]
    return list(blocks.anchors_of(documents, per_document=3))


def exported(pipeline: Pipeline, root: Path, dtype: Any = "float32") -> Artifact:
    context = FakeContext(root / "export")
    export.run(inputs(pipeline.target, pipeline.drafter), ExportParams(dtype=dtype), context)
    return artifact("export", context.output)


def run(pipeline: Pipeline, made: Artifact, context: FakeContext, **changes: Any) -> dict[str, Any]:
    given = inputs(pipeline.target, pipeline.drafter, made, pipeline.features, pipeline.tokens)
    verify.run(given, PARAMS.model_copy(update=changes), context)
    found: dict[str, Any] = json.loads((context.output / "verification.json").read_text())
    return found


def edit_tensor(path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(str(path))
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, str(path))


def test_sound_drafter_passes(pipeline: Pipeline, tmp_path: Path) -> None:
    found = run(pipeline, exported(pipeline, tmp_path), FakeContext(tmp_path / "run"))
    checks = {c["name"]: c for c in found["checks"]}
    assert list(checks) == ["tokens", "alignment", "export", "train-serve", "greedy"]
    assert found["passed"] is True
    assert all(c["passed"] for c in found["checks"])
    assert checks["export"]["numbers"]["largest_relative_error"] == 0.0
    assert checks["export"]["numbers"]["equal_proposals"] == 1.0
    assert checks["train-serve"]["numbers"]["blocks"] == 6
    assert 0 < checks["train-serve"]["numbers"]["largest_relative_error"] < 1e-5
    assert checks["alignment"]["numbers"]["with_near_ties"] == 1.0
    assert checks["greedy"]["numbers"]["prompts"] == 2
    assert checks["greedy"]["numbers"]["differing_prompts"] == 0


def test_rounded_export_passes_and_tells_its_error(pipeline: Pipeline, tmp_path: Path) -> None:
    found = run(pipeline, exported(pipeline, tmp_path, "bfloat16"), FakeContext(tmp_path / "run"), prompts_per_kind=1)
    numbers = next(c["numbers"] for c in found["checks"] if c["name"] == "export")
    assert 1e-4 < numbers["largest_relative_error"] < 0.05
    assert numbers["blocks_not_bit_equal_after_cast"] == 0


@pytest.mark.parametrize("tensor", ["fc.weight", "layers.1.self_attn.k_norm.weight", "layers.0.mlp.down_proj.weight"])
def test_changed_export_is_found(pipeline: Pipeline, tmp_path: Path, tensor: str) -> None:
    made = exported(pipeline, tmp_path)
    edit_tensor(made.path / "draft/model.safetensors", tensor, lambda t: t * 1.01)
    context = FakeContext(tmp_path / "run")
    with pytest.raises(StageError, match="FAILED: The export, read back, is the trained drafter"):
        run(pipeline, made, context)
    assert sum("passed" in message for message in context.messages) == 4
    assert not (context.output / "verification.json").exists()


def test_changed_rope_of_the_export_is_found(pipeline: Pipeline, tmp_path: Path) -> None:
    made = exported(pipeline, tmp_path)
    path = made.path / "draft/config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] = config["rope_theta"] = 500.0
    path.write_text(json.dumps(config))
    with pytest.raises(StageError, match="the export differs from the trained weights in float32"):
        run(pipeline, made, FakeContext(tmp_path / "run"))


def test_wrong_proposer_is_found(pipeline: Pipeline, target: Target, anchors: list[blocks.Anchor]) -> None:
    """A decoding forward with one position too many, against the training forward."""
    proposer: Any = load_drafter(pipeline.drafter.path, target, precision="fp32")
    network = load_network(pipeline.drafter.path)
    given: Any = {"method": "dflash", "network": network, "embed": target.embed}
    assert parity.check_train_serve(anchors, proposer=proposer, **given).passed
    extend = proposer.extend
    proposer.extend = lambda rows: extend(replace(rows, features_TKH=rows.features_TKH.flip(0)))
    found = parity.check_train_serve(anchors, proposer=proposer, **given)
    assert not found.passed
    assert found.numbers["largest_relative_error"] > 0.01
    assert "relative error" in found.failures[0]


def test_wrong_weight_of_the_proposer_is_found(
    pipeline: Pipeline, target: Target, anchors: list[blocks.Anchor], tmp_path: Path
) -> None:
    shutil.copytree(pipeline.drafter.path, tmp_path / "drafter")
    edit_tensor(tmp_path / "drafter/drafter/model.safetensors", "hidden_norm.weight", lambda t: t * 1.02)
    check = parity.check_train_serve(
        anchors,
        method="dflash",
        network=load_network(pipeline.drafter.path),
        proposer=load_drafter(tmp_path / "drafter", target, precision="fp32"),
        embed=target.embed,
    )
    assert not check.passed


def stored(pipeline: Pipeline) -> list[Any]:
    reader = FeatureReader(pipeline.features.path)
    return [reader.document(i) for i in reader.indices("heldout")]


def test_features_one_row_late_are_found(pipeline: Pipeline, target: Target) -> None:
    late = [replace(d, last_hidden_TH=d.last_hidden_TH.roll(1, 0)) for d in stored(pipeline)]
    check = alignment.check_alignment(late, target=target, layer_ids=LAYERS)
    assert not check.passed
    assert check.numbers["with_near_ties"] < 0.9
    assert "another next token" in check.failures[0]


def test_features_of_another_layer_are_found(pipeline: Pipeline, target: Target) -> None:
    check = alignment.check_alignment(stored(pipeline), target=target, layer_ids=(0, 1))
    assert not check.passed
    assert check.failures == ["layer 1: the stored rows are nearer to the output of layer 2"]


def test_other_tokens_are_found(pipeline: Pipeline) -> None:
    documents = stored(pipeline)
    ids = {d.index: d.token_ids_T.tolist() for d in documents}
    assert alignment.check_tokens(documents, ids).passed
    ids[documents[0].index][3] += 1
    assert alignment.check_tokens(documents, ids).numbers["differing"] == 1


def test_a_differing_output_fails_in_fp32(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow.decoding import speculative

    decode = speculative.decode_speculative

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = decode(*args, **kwargs)
        found.tokens[2] = (found.tokens[2] + 1) % 300
        return found

    monkeypatch.setattr(speculative, "decode_speculative", wrong)
    with pytest.raises(StageError, match=r"FAILED: Greedy output .*\n.*token 2: plain"):
        run(pipeline, exported(pipeline, tmp_path), FakeContext(tmp_path / "run"))


def test_finished_prompts_are_not_decoded_again(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.decoding import speculative

    decode, calls = speculative.decode_speculative, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*args, **kwargs)

    monkeypatch.setattr(speculative, "decode_speculative", counted)
    made = exported(pipeline, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(pipeline, made, FakeContext(tmp_path / "run"))
    again = FakeContext(tmp_path / "run")
    resumed = run(pipeline, made, again)
    assert len(calls) == 3
    assert again.progresses[-1][1].done == again.progresses[-1][0] == 4
    assert resumed == run(pipeline, made, FakeContext(tmp_path / "whole"))


LOSSLESS = LosslessParams(enabled=True, samples=50, alphabet=6, temperatures=(1.0,), continuations=0)
REAL = LosslessParams(enabled=True, samples=0, temperatures=(1.0,), prompts=2, continuations=2, continuation_tokens=8)


@pytest.mark.parametrize("tree", [None, TreeParams(steps=2, topk=2, num_draft_tokens=5)])
def test_certificate(pipeline: Pipeline, tmp_path: Path, tree: TreeParams | None) -> None:
    context = FakeContext(tmp_path / "run")
    found = run(pipeline, exported(pipeline, tmp_path), context, lossless=LOSSLESS, tree=tree, batch_size=8)
    check = found["checks"][-1]
    assert (check["name"], check["passed"]) == ("lossless", True)
    numbers = check["numbers"]
    assert numbers["tree"] == (tree and [2, 2, 5])
    assert numbers["alphabet"] == 6
    assert numbers["settings"] == 11  # greedy, four filters and penalties, the last five with drawn proposals too
    assert len(numbers["tests"]) == 12
    assert numbers["accepted_per_round"] > 0.1
    assert context.progresses[-1][1].done == context.progresses[-1][0] == 11 * 50
    assert not any("total_variation" in message for message in context.messages)


@pytest.mark.parametrize("tree", [None, TreeParams(steps=2, topk=2, num_draft_tokens=5)])
def test_certificate_of_the_whole_vocabulary(pipeline: Pipeline, tmp_path: Path, tree: TreeParams | None) -> None:
    context = FakeContext(tmp_path / "run")
    found = run(pipeline, exported(pipeline, tmp_path), context, lossless=REAL, tree=tree, batch_size=8)
    check = found["checks"][-1]
    assert (check["name"], check["passed"]) == ("continuations", True)
    numbers = check["numbers"]
    assert (numbers["prompts"], numbers["continuations"]) == (2, 11 * 2 * 2)
    assert numbers["positions"] > 100
    assert context.progresses[-1][1].done == context.progresses[-1][0] == 2 * 11 * 2 * 2


@pytest.mark.parametrize(
    ("lossless", "named"),
    [
        (LOSSLESS, "Sampled answers .*"),
        (REAL.model_copy(update={"continuations": 6}), "Sampled continuations .*(likely|seen)"),
    ],
)
def test_certificate_rejects_another_distribution(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lossless: LosslessParams, named: str
) -> None:
    """A drafter's proposals that always stay: its distribution instead of the target's."""
    from specflow.decoding.randomness import RequestRandom

    monkeypatch.setattr(RequestRandom, "accepts", lambda self, **_: True)
    with pytest.raises(StageError, match=re.compile(f"FAILED: {named}: p-value", re.DOTALL)):
        run(pipeline, exported(pipeline, tmp_path), FakeContext(tmp_path / "run"), lossless=lossless)


def test_a_certificate_of_nothing_is_refused() -> None:
    refused = [LosslessParams(enabled=True, samples=0, continuations=0), LosslessParams(samples=49)]
    assert [[p.where for p in verify.check(VerifyParams(lossless=each))] for each in refused] == [
        ["lossless"],
        ["lossless.samples"],
    ]


def test_near_ties_are_refused_in_fp32() -> None:
    assert [p.where for p in verify.check(VerifyParams(precision="fp32", near_tie=0.1))] == ["near_tie"]
    assert not list(verify.check(VerifyParams(precision="bf16", near_tie=0.1)))
    assert not list(verify.check(VerifyParams(precision="fp32")))


def test_packed_is_verified_with_its_own_limit(pipeline: Pipeline, tmp_path: Path) -> None:
    record = run(pipeline, exported(pipeline, tmp_path), FakeContext(tmp_path / "run"), precision="packed")
    (greedy,) = [c for c in record["checks"] if c["name"] == "greedy"]
    assert record["precision"] == greedy["numbers"]["precision"] == "packed"
    assert greedy["limit"] == "the fp32 gap at each first difference within 0.0001 of the largest logit"
    assert greedy["numbers"]["differing_prompts"] == greedy["numbers"]["near_ties"]


def test_auto_that_becomes_fp32_allows_no_difference(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.targets import probe

    monkeypatch.setattr(probe, "choose_precision", lambda hidden, intermediate: "fp32")
    made = exported(pipeline, tmp_path)
    record = run(pipeline, made, FakeContext(tmp_path / "run"), precision="auto", near_tie=5.0)
    assert record["precision"] == "fp32"
    assert [c["limit"] for c in record["checks"] if c["name"] == "greedy"] == ["no difference"]
