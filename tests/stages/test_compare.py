"""The compare stage on a tiny target: every mode decodes every prompt, and the figures are sums of the waves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.compare import CompareParams
from specflow.config.tree import TreeParams
from specflow.decoding.records import Generation, Round
from specflow.reporting.ranking import ranking, ranking_table
from specflow.serving.requests import Request
from specflow.serving.waves import Wave, measure_waves, waves_of
from specflow.stages import compare
from specflow.stages.contract import Artifact, StageError
from tests.serving.helpers import Pipeline, make_pipeline, random_drafter
from tests.stages.pipeline_helpers import FakeContext, inputs

torch.set_num_threads(1)

PARAMS = CompareParams(concurrency=(1, 2), max_new_tokens=8, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(tmp_path_factory.mktemp("compare"))


def second(pipeline: Pipeline, root: Path, name: str) -> Artifact:
    made = random_drafter(root / name, pipeline.target, seed=9)
    return replace(made, key="e" * 64, item=name)


def run(pipeline: Pipeline, context: FakeContext, other: Artifact, **changes: Any) -> dict[str, Any]:
    given = inputs(pipeline.target, pipeline.drafter, other, pipeline.tokens)
    return dict(compare.run(given, PARAMS.model_copy(update=changes), context))


def test_ranking_of_two_drafters(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    metrics = run(pipeline, context, second(pipeline, tmp_path, "other"))
    rows = json.loads((context.output / "comparison.json").read_text())["rows"]
    assert {(row["mode"], row["concurrency"]) for row in rows} == {
        (mode, c) for mode in ("plain", "tiny", "other") for c in (1, 2)
    }
    for row in rows:
        assert row["prompts"] == row["equal_prompts"] == 2  # greedy outputs are plain decoding's
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        assert (row["tau"] is None) == (row["mode"] == "plain")
    for concurrency in (1, 2):
        rates = [row["tokens_per_second"] for row in rows if row["concurrency"] == concurrency]
        assert rates == sorted(rates, reverse=True)
    assert metrics["best"] == next(row["mode"] for row in rows if row["concurrency"] == 2)
    assert (context.output / "comparison.png").stat().st_size > 10_000
    assert "against plain" in context.messages[-1]


def test_a_tree_is_one_more_mode(pipeline: Pipeline, tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "run")
    tree = TreeParams(steps=2, topk=2, num_draft_tokens=5)
    run(pipeline, context, second(pipeline, tmp_path, "other"), trees={"tiny": tree}, concurrency=(2,))
    rows = json.loads((context.output / "comparison.json").read_text())["rows"]
    assert {row["mode"] for row in rows} == {"plain", "tiny", "tiny+tree", "other"}
    assert all(row["equal_prompts"] == row["prompts"] == 2 for row in rows)
    with pytest.raises(StageError, match=r"compare.trees names nobody; the drafters here are tiny, other"):
        run(pipeline, FakeContext(tmp_path / "b"), second(pipeline, tmp_path / "b", "other"), trees={"nobody": tree})


def test_two_drafters_of_one_name_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    for name in ("tiny", "plain"):
        with pytest.raises(StageError, match=f"two modes are named {name}"):
            run(pipeline, FakeContext(tmp_path / name), second(pipeline, tmp_path, name))


def requests(count: int) -> list[Request]:
    return [Request(id=str(i), kind="a" if i < count // 2 else "b", prompt=(i, i + 1)) for i in range(count)]


def test_waves_hold_every_prompt_once() -> None:
    for count, concurrency in ((1, 1), (7, 1), (45, 4), (5, 32), (96, 8)):
        waves = waves_of(requests(count), concurrency)
        assert sorted(int(r.id) for wave in waves for r in wave) == list(range(count))
        sizes = [len(wave) for wave in waves]
        assert max(sizes) - min(sizes) <= 1
        assert concurrency == 1 or min(sizes) >= min(count, concurrency)


def test_a_killed_run_goes_on_without_decoding_a_wave_twice(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []
    room = [5]

    def mode(name: str) -> Any:
        def decode(prompts: Any, concurrency: int) -> list[Generation]:
            if not room[0]:
                raise KeyboardInterrupt
            room[0] -= 1
            asked.append((name, prompts[0][0]))
            return [Generation(prompt_length=2, tokens=[1, 2], finish="length") for _ in prompts]

        return decode

    modes = {name: mode(name) for name in ("plain", "x")}
    given: Any = {"concurrency": 1, "repeats": 1, "kept": tmp_path / "waves.jsonl", "on_wave": lambda: None}
    with pytest.raises(KeyboardInterrupt):
        measure_waves(requests(4), modes, **given)
    with (tmp_path / "waves.jsonl").open("a") as file:
        file.write('{"torn')
    room[0] = 100
    found = measure_waves(requests(4), modes, **given)
    assert len(asked) == len(set(asked)) == len(found) == 8
    assert [w.mode for w in found] == ["plain", "x", "x", "plain"] * 2, "each mode is first as often"


def wave(mode: str, number: int, seconds: float, rounds: list[Round]) -> Wave:
    generation = Generation(prompt_length=1, tokens=[0] * 10, finish="length", rounds=rounds)
    return Wave(concurrency=4, number=number, repeat=0, mode=mode, seconds=seconds, generations=[generation])


def test_figures_are_ratios_of_sums() -> None:
    rounds = [Round(proposed=3, accepted=2, delivered=3), Round(proposed=3, accepted=0, delivered=1)]
    rows = ranking(
        [wave("plain", 0, 1.0, []), wave("x", 0, 0.5, rounds), wave("plain", 1, 3.0, []), wave("x", 1, 1.5, rounds[:1])]
    )
    assert [row["mode"] for row in rows] == ["x", "plain"]
    assert rows[0]["tokens_per_second"] == pytest.approx(20 / 2.0)
    assert rows[0]["speedup"]["ratio"] == pytest.approx(2.0)
    assert rows[0]["speedup"]["low"] == pytest.approx(2.0)
    assert rows[0]["tau"] == pytest.approx((3 + 1 + 3) / 3)
    assert rows[1]["tau"] is None
    assert "2.00" in ranking_table(rows)
