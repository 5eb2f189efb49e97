"""The bench stage on a tiny target: the result record adds up and names its circumstances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specflow.config.bench import BenchParams
from specflow.config.sampling import SamplingParams
from specflow.config.tree import TreeParams
from specflow.decoding.sampling import sampling_of
from specflow.stages import bench
from specflow.stages.contract import StageError
from tests.serving.helpers import Pipeline, make_pipeline
from tests.stages.pipeline_helpers import FakeContext, fingerprint_of, inputs

PARAMS = BenchParams(
    max_new_tokens=10, warmup_prompts=1, precision="fp32", transformers_prompts=2, transformers_tokens=4, threads=1
)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("bench"))


def run(pipeline: Pipeline, context: FakeContext, **changes: Any) -> dict[str, Any]:
    given = inputs(pipeline.target, pipeline.drafter, pipeline.tokens)
    return dict(bench.run(given, PARAMS.model_copy(update=changes), context))


def test_record(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    metrics = run(pipeline, context)
    record = json.loads((context.output / "result.json").read_text())
    total, kinds = record["total"], record["kinds"]
    assert sorted(kinds) == ["broad", "service"]
    for side in ("plain", "speculative"):
        for figure in ("tokens", "decode_tokens", "decode_seconds", "prefill_seconds"):
            assert total[side][figure] == pytest.approx(sum(kind[side][figure] for kind in kinds.values()))
    assert total["prompts"] == record["dataset"]["prompts"] == 2
    # Greedy outputs are equal, hence so are the counts of tokens.
    assert total["plain"]["tokens"] == total["speculative"]["tokens"]
    assert record["equality"] == {"prompts": 2, "differing": 0, "near_ties": 0, "differences": []}
    ratio = total["speculative"]["tokens_per_second"] / total["plain"]["tokens_per_second"]
    assert total["speedup"]["ratio"] == pytest.approx(ratio)
    assert metrics["speedup"] == pytest.approx(ratio)
    assert total["speedup"]["low"] <= ratio <= total["speedup"]["high"]
    assert 1.0 <= total["tau"] <= 4.0
    assert any("speed-up" in message for message in context.messages)


def test_rounds_file_agrees_with_the_record(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    run(pipeline, context, repeats=2, compare_transformers=False)
    record = json.loads((context.output / "result.json").read_text())
    rows = [json.loads(line) for line in (context.output / "rounds.jsonl").read_text().splitlines()]
    assert [(row["id"], row["repeat"]) for row in rows] == [("row-4", 0), ("row-4", 1), ("row-9", 0), ("row-9", 1)]
    rounds = [r for row in rows for r in row["rounds"]]
    assert len(rounds) == record["total"]["rounds"]
    assert sum(r["delivered"] for r in rounds) == record["total"]["speculative"]["decode_tokens"]
    assert record["total"]["tau"] == pytest.approx(sum(r["delivered"] for r in rounds) / len(rounds))
    parts = record["total"]["round_seconds"]
    assert parts["draft"] == pytest.approx(sum(r["draft_seconds"] for r in rounds) / len(rounds))
    assert parts["verify"] > 0
    assert record["transformers"] is None


def test_circumstances_are_stated(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    run(pipeline, context)
    record = json.loads((context.output / "result.json").read_text())
    assert record["concurrency"] == 1
    assert (record["sampling"]["name"], record["sampling"]["temperature"]) == ("greedy", 0.0)
    assert record["engine"]["precision"] == "fp32"
    assert record["drafter"]["name"] == "tiny"
    assert record["drafter"]["num_proposals"] == 3
    assert record["template"] == {
        "sha256": fingerprint_of(pipeline.target)["template_sha256"], "thinking": "template_default",
    }  # fmt: skip
    assert record["drafter"]["trained_in_precision"] == "fp32"
    assert len(record["dataset"]["sha256"]) == 64
    assert "bonus or correction included" in record["conventions"]["tau"]
    assert record["hardware"]["cpu"]
    assert record["hardware"]["threads"] == 1
    assert record["versions"]["torch"]
    rates = record["transformers"]["rates"]
    assert list(rates) == ["generate, bfloat16", "generate, float32", "plain decoding here, fp32"]
    own = rates["plain decoding here, fp32"]["tokens_per_second"]
    other = rates["generate, float32"]
    assert other["plain_over_this"] == pytest.approx(own / other["tokens_per_second"])
    assert other["decode_tokens"] == 2 * 3


def test_sampled_bench(pipeline: Pipeline, tmp_path: Path) -> None:
    """Both modes sample, seeded per prompt; two runs decode the same, and outputs are not compared."""
    sampling = SamplingParams(temperature=1.2, top_p=0.9, draft_temperature=1.0, seed=3)
    counts = []
    for name in ("a", "b"):
        context = FakeContext(tmp_path / name)
        metrics = run(pipeline, context, sampling=sampling, compare_transformers=False)
        record = json.loads((context.output / "result.json").read_text())
        assert record["sampling"] == {"name": "sampled", **sampling.model_dump()}
        assert record["equality"] is None
        assert "differing_prompts" not in metrics
        rows = [json.loads(line) for line in (context.output / "rounds.jsonl").read_text().splitlines()]
        counts.append([(r["accepted"], r["delivered"]) for row in rows for r in row["rounds"]])
    assert counts[0] == counts[1]
    first, other = (sampling_of(sampling, prompt) for prompt in ([1, 2], [1, 3]))
    assert first.seed != other.seed
    assert first == sampling_of(sampling, [1, 2])
    assert (first.temperature, first.top_p, first.draft_temperature) == (1.2, 0.9, 1.0)
    with pytest.raises(ValidationError, match="nothing is sampled at temperature 0"):
        SamplingParams(top_k=5, draft_temperature=1.0)


def test_trees(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    tree = TreeParams(steps=2, topk=3, num_draft_tokens=7)
    run(pipeline, context, tree=tree, compare_transformers=False)
    record = json.loads((context.output / "result.json").read_text())
    assert record["tree"] == {**tree.model_dump(), "chosen": None}
    assert record["equality"]["differing"] == 0
    assert len(record["total"]["acceptance"]["cumulative"]) == 2
    rows = [json.loads(line) for line in (context.output / "rounds.jsonl").read_text().splitlines()]
    assert {r["tree_nodes"] for row in rows for r in row["rounds"]} == {6}
    other = FakeContext(tmp_path / "other")
    run(pipeline, other, tree=tree, tree_drafters=("someone",), compare_transformers=False)
    assert json.loads((other.output / "result.json").read_text())["tree"] is None


def test_a_tree_chosen_from_measurements(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow.decoding import tree_choice

    context = FakeContext(tmp_path / "run")
    run(pipeline, context, tree="auto", max_new_tokens=24, compare_transformers=False)
    record = json.loads((context.output / "result.json").read_text())
    chosen = record["tree"]["chosen"]
    assert {k: record["tree"][k] for k in ("steps", "topk", "num_draft_tokens")} == chosen["best"]["shape"]
    assert chosen["best"]["tokens_per_second"] >= chosen["next_best"][0]["tokens_per_second"]
    assert chosen["gain"] >= 1.0
    assert chosen["positions"] > 0
    assert any("predicted tau" in message for message in context.messages)
    # A killed run goes on with the shape that was chosen.
    monkeypatch.setattr(tree_choice, "choose_tree", None)
    run(pipeline, context, tree="auto", max_new_tokens=24, compare_transformers=False)


def test_a_proposer_of_chains_cannot_be_asked_for_trees(tmp_path: Path) -> None:
    from specflow.stages.trees import asked_shape
    from tests.decoding.proposers import ScriptedProposer

    proposer, context = ScriptedProposer([1], [], num_proposals=2, right=lambda _: 0), FakeContext(tmp_path / "run")
    for tree in (TreeParams(), "auto"):
        with pytest.raises(StageError, match="ScriptedProposer proposes chains only"):
            asked_shape(tree, None, proposer, context)
        assert asked_shape(tree, ("another",), proposer, context) is None


def test_generate_gives_the_same_tokens_as_plain_decoding(pipeline: Pipeline) -> None:
    from specflow.data.documents import read_documents
    from specflow.decoding.plain import decode_plain
    from specflow.serving.generate_baseline import GenerateBaseline
    from specflow.targets.target import Target

    prompt = read_documents(pipeline.tokens.path)[4].prompt_ids
    target = Target.load(pipeline.target.path, precision="fp32", threads=1)
    found = GenerateBaseline(pipeline.target.path, dtype="float32").decode(prompt, max_new_tokens=6)
    assert found.tokens == decode_plain(target, [prompt], max_new_tokens=6)[0].tokens
    assert found.prefill_seconds > 0
    assert found.decode_seconds > 0


def test_finished_prompts_are_kept(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow.decoding import speculative

    decode, calls = speculative.decode_speculative, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return decode(*args, **kwargs)

    monkeypatch.setattr(speculative, "decode_speculative", counted)
    with pytest.raises(KeyboardInterrupt):
        run(pipeline, FakeContext(tmp_path / "run"), compare_transformers=False)
    run(pipeline, FakeContext(tmp_path / "run"), compare_transformers=False)
    # Warm-up, first prompt, killed in the second; again warm-up, then only the second.
    assert len(calls) == 5
    assert calls[4] == calls[2]


def test_a_differing_output_is_counted_with_its_gap(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.decoding import speculative

    decode = speculative.decode_speculative

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = decode(*args, **kwargs)
        found.tokens[1] = (found.tokens[1] + 1) % 300
        return found

    monkeypatch.setattr(speculative, "decode_speculative", wrong)
    context = FakeContext(tmp_path / "run")
    metrics = run(pipeline, context, compare_transformers=False)
    assert metrics["differing_prompts"] == 2
    differences = json.loads((context.output / "result.json").read_text())["equality"]["differences"]
    assert [d["position"] for d in differences] == [1, 1]
    assert all(d["gap"] > 0 for d in differences)


@pytest.mark.parametrize(("near_tie", "ties"), [(None, 0), (1e9, 1)])
def test_every_repeat_is_compared(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near_tie: float | None, ties: int
) -> None:
    from specflow.decoding import speculative

    decode, calls = speculative.decode_speculative, []

    def wrong_in_the_last(*args: Any, **kwargs: Any) -> Any:
        found = decode(*args, **kwargs)
        calls.append(args)
        if len(calls) == 4:
            found.tokens[1] = (found.tokens[1] + 1) % 300
        return found

    monkeypatch.setattr(speculative, "decode_speculative", wrong_in_the_last)
    context = FakeContext(tmp_path / "run")
    run(pipeline, context, repeats=2, warmup_prompts=0, precision="bf16", near_tie=near_tie, compare_transformers=False)
    found = json.loads((context.output / "result.json").read_text())["equality"]
    assert (found["prompts"], found["near_ties"], len(calls)) == (2, ties, 4)
    (row,) = [d for d in found["differences"] if d["position"] == 1]
    assert row["gap"] > row["largest_logit"] / 64
    assert row["near_tie"] is bool(ties)


def test_no_baseline_is_a_failure(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no baseline"):
        run(pipeline, FakeContext(tmp_path / "run"), max_new_tokens=1)
    assert [p.where for p in bench.check(BenchParams(max_new_tokens=1))] == ["max_new_tokens"]
