"""The parity stage against a server that drafts by the embedded engine, and every way in which it can differ."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.config.parity import ParityParams
from specflow.config.tree import TreeParams
from specflow.decoding.trees import TreeShape
from specflow.serving.verification.parity import export_as_drafter
from specflow.stages import parity
from specflow.stages.contract import StageError
from specflow.targets.target import Target
from tests.serving.fake_sglang import Act, FakeDrafting
from tests.serving.trained import PROMPTS, Trained, make_trained
from tests.stages.pipeline_helpers import FakeContext, inputs

TOKENS = 24


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    return make_trained(tmp_path_factory.mktemp("parity"), "dflash")


@pytest.fixture(scope="module")
def target(made: Trained) -> Target:
    return Target.load(made.target.path, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def drafter(made: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export as a drafter of the embedded engine, which the fake server drafts with."""
    place = tmp_path_factory.mktemp("loaded")
    return export_as_drafter(made.export.file("draft"), made.drafter.file("drafter"), place)


def serving(made: Trained, target: Target, drafter: Path, **named: Any) -> FakeDrafting:
    said = {
        "model_path": str(made.target.path.resolve()),
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": str(made.export.file("draft").resolve()),
        "speculative_num_draft_tokens": 4,
    }
    return FakeDrafting(target, drafter, server={**said, **named.pop("server", {})}, **named)


def run(made: Trained, url: str, context: FakeContext, **changes: Any) -> dict[str, Any]:
    params = ParityParams.model_validate(
        {
            "sglang": {"url": url, "retries": 1, "backoff": 0.01},
            "max_new_tokens": TOKENS,
            "transformers_prompts": 2,
            "threads": 1,
            **changes,
        }
    )
    return dict(parity.run(inputs(made.target, made.drafter, made.export, made.tokens), params, context))


def changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def apply(reply: dict[str, Any]) -> dict[str, Any]:
        place = reply if key in reply else reply["meta_info"]
        place[key] = change(place[key])
        return reply

    return apply


def test_a_server_that_drafts_alike_passes(made: Trained, target: Target, drafter: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    with serving(made, target, drafter) as server:
        metrics = run(made, server.url, context)
    assert len(server.bodies) == PROMPTS
    assert server.most_in_flight == 1
    assert len({body["extra_key"] for body in server.bodies}) == PROMPTS
    record = json.loads((context.output / "parity.json").read_text())
    checks = {c["name"]: c for c in record["checks"]}
    assert list(checks) == ["settings", "greedy", "transformers", "acceptance-by-position", "working"]
    assert record["passed"] is True
    assert all(c["passed"] for c in checks.values())
    assert record["engine"]["version"] == "0.5.23"
    assert record["engine"]["settings"]["speculative_num_draft_tokens"] == "4"
    assert (record["precision"], record["concurrency"], record["lint"]) == ("fp32", 1, [])
    counts = checks["acceptance-by-position"]["numbers"]
    assert counts["served"] == counts["embedded"]
    assert len(counts["served"]) == 4  # some round accepts all three
    assert checks["greedy"]["numbers"]["tokens"] == 79  # one answer ends by itself
    assert checks["transformers"]["numbers"]["prompts"] == 2
    rounds, accepted = sum(counts["served"]), sum(r * n for r, n in enumerate(counts["served"]))
    assert metrics["working"]["accept_length"] == pytest.approx(1 + accepted / rounds)
    assert metrics["working"]["accept_length"] > 1.5
    json.dumps(metrics)


@pytest.mark.parametrize(
    ("server", "model", "said"),
    [
        ({"speculative_num_draft_tokens": 16}, {}, "speculative_num_draft_tokens: expected 4, found 16"),
        ({"speculative_algorithm": None}, {}, "speculative_algorithm: expected DFLASH, found None"),
        ({"speculative_draft_model_path": None}, {}, "speculative_draft_model_path: expected"),
        ({}, {"architectures": ["Qwen3ForCausalLM"]}, "it serves Qwen3ForCausalLM"),
        ({"quantization": "fp8"}, {}, "quantised"),
    ],
)
def test_a_server_that_runs_otherwise_is_asked_nothing(
    made: Trained,
    target: Target,
    drafter: Path,
    tmp_path: Path,
    server: dict[str, Any],
    model: dict[str, Any],
    said: str,
) -> None:
    with serving(made, target, drafter, server=server, model=model) as fake, pytest.raises(StageError, match=said):
        run(made, fake.url, FakeContext(tmp_path))
    assert fake.bodies == []


def test_a_server_with_other_draft_weights_is_refused(
    made: Trained, target: Target, drafter: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(made.export.file("draft"), tmp_path / "other"))
    tensors = load_file(str(other / "model.safetensors"))
    with serving(made, target, drafter, server={"speculative_draft_model_path": str(other)}) as fake:
        assert run(made, fake.url, FakeContext(tmp_path / "copy"))["passed"] is True  # a copy is as good
        save_file({**tensors, "norm.weight": tensors["norm.weight"] + 1}, str(other / "model.safetensors"))
        with pytest.raises(StageError, match="speculative_draft_model_path: expected"):
            run(made, fake.url, FakeContext(tmp_path / "changed"))


@pytest.mark.parametrize(
    ("key", "change", "said"),
    [
        (
            "output_ids",
            lambda ids: [*ids[:5], ids[5] ^ 1, *ids[6:]],
            r"FAILED: The server's greedy output equals plain",
        ),
        ("output_ids", lambda ids: ids[:-1], r"FAILED: The server's greedy output equals that of transformers"),
        ("output_ids", lambda ids: [], "expected output_ids in the reply"),
        ("spec_verify_ct", lambda n: n + 1, "rounds that accept"),
    ],
)
def test_another_answer_fails(
    made: Trained,
    target: Target,
    drafter: Path,
    tmp_path: Path,
    key: str,
    change: Callable[[Any], Any],
    said: str,
) -> None:
    act = Act(change=changed(key, change))
    with serving(made, target, drafter, behave=lambda n, ids: act) as fake, pytest.raises(StageError, match=said):
        run(made, fake.url, FakeContext(tmp_path))


def test_other_counts_fail_though_the_text_is_right(
    made: Trained, target: Target, drafter: Path, tmp_path: Path
) -> None:
    def one_less(reply: dict[str, Any]) -> dict[str, Any]:
        meta = reply["meta_info"]
        counts = meta["spec_correct_drafts_histogram"]
        last = len(counts) - 1
        counts[last], counts[last - 1] = counts[last] - 1, counts[last - 1] + 1
        meta["spec_num_correct_drafts"] -= 1
        return reply

    context = FakeContext(tmp_path)
    with (
        serving(made, target, drafter, behave=lambda n, ids: Act(change=one_less) if n == 2 else Act()) as fake,
        pytest.raises(StageError, match=r"1 of 5 checks failed(?s:.)*differing_prompts 1(?s:.)*rounds by accepted"),
    ):
        run(made, fake.url, context)
    assert sum("passed" in message for message in context.messages) == 4


def test_a_drafter_that_loads_wrong_is_found_with_its_cause(
    made: Trained, target: Target, drafter: Path, tmp_path: Path
) -> None:
    """The export lost a tensor after it was made: what the server drafts with is noise, and it answers rightly."""
    broken = replace(made.export, path=Path(shutil.copytree(made.export.path, tmp_path / "export")))
    noise = Path(shutil.copytree(drafter, tmp_path / "noise"))
    weights = load_file(str(noise / "model.safetensors"))
    save_file({name: torch.randn_like(tensor) for name, tensor in weights.items()}, str(noise / "model.safetensors"))
    place = broken.file("draft") / "model.safetensors"
    exported = load_file(str(place))
    save_file({("fc.weigth" if name == "fc.weight" else name): t for name, t in exported.items()}, str(place))
    said = {"speculative_draft_model_path": str(broken.file("draft").resolve())}
    with serving(made, target, noise, server=said) as fake, pytest.raises(StageError) as caught:
        run(replace(made, export=broken), fake.url, FakeContext(tmp_path / "run"))
    text = str(caught.value)
    assert text.startswith("2 of 5 checks failed")
    assert "FAILED: The server accepts at every position" in text
    assert "FAILED: The server's rounds accept proposals" in text
    assert text.count("the linter found [tensors] fc.weight") == 2
    assert "a missing tensor stays random" in text


def test_a_drafter_that_accepts_nothing_anywhere_is_not_blamed_on_serving(
    made: Trained, target: Target, drafter: Path, tmp_path: Path
) -> None:
    with (
        serving(made, target, drafter) as fake,
        pytest.raises(StageError, match=r"the embedded engine accepts as little(?s:.)*serving is not at fault"),
    ):
        run(made, fake.url, FakeContext(tmp_path), min_accept_length=4.0)


def test_a_server_that_dies_loses_no_answer(made: Trained, target: Target, drafter: Path, tmp_path: Path) -> None:
    behave = lambda n, ids: Act(drop=n >= 2)  # noqa: E731
    context = FakeContext(tmp_path)
    with (
        serving(made, target, drafter, behave=behave) as fake,
        pytest.raises(StageError, match="Finished prompts are kept"),
    ):
        run(made, fake.url, context)
    with serving(made, target, drafter) as again:
        assert run(made, again.url, context)["passed"] is True
    assert len(again.bodies) == PROMPTS - 2
    with serving(made, target, drafter, server={"version": "0.5.24"}) as another:
        run(made, another.url, context)
    assert len(another.bodies) == PROMPTS  # another server's answers are not this one's


def test_answers_of_a_server_that_failed_are_not_kept(
    made: Trained, target: Target, drafter: Path, tmp_path: Path
) -> None:
    wrong = Act(change=changed("output_ids", lambda ids: ids[:-1]))
    context = FakeContext(tmp_path)
    with serving(made, target, drafter, behave=lambda n, ids: wrong) as fake, pytest.raises(StageError):
        run(made, fake.url, context)
    with serving(made, target, drafter) as repaired:
        assert run(made, repaired.url, context)["passed"] is True
    assert len(repaired.bodies) == PROMPTS


def test_trees_are_compared_with_trees(tmp_path: Path) -> None:
    """The export says which; a server that drafts another tree than it says is found by its counts."""
    sizes = {"steps": 3, "topk": 2, "num_draft_tokens": 7}
    made = make_trained(tmp_path, "eagle", tree=TreeParams(**sizes))
    target = Target.load(made.target.path, precision="fp32", threads=1)
    drafter = export_as_drafter(made.export.file("draft"), made.drafter.file("drafter"), tmp_path / "loaded")
    said = {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 7,
    }
    with serving(made, target, drafter, server=said, tree=TreeShape(**sizes)) as server:
        metrics = run(made, server.url, FakeContext(tmp_path / "tree"))
    assert metrics["working"]["accept_length"] == metrics["working"]["embedded_accept_length"] > 1.3
    smaller = TreeShape(steps=1, topk=2, num_draft_tokens=3)
    with (
        serving(made, target, drafter, server=said, tree=smaller) as other,
        pytest.raises(StageError, match="1 of 5 checks failed") as caught,
    ):
        run(made, other.url, FakeContext(tmp_path / "other"))
    assert "FAILED: The server accepts at every position" in str(caught.value)
    chain = {**said, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
    with (
        serving(made, target, drafter, server=chain) as third,
        pytest.raises(StageError, match="speculative_eagle_topk: expected 2, found 1"),
    ):
        run(made, third.url, FakeContext(tmp_path / "chain"))


def test_the_section_names_one_server() -> None:
    assert [p.found for p in parity.check(ParityParams())] == ["neither url nor python"]
    with pytest.raises(ValueError, match="flags that the stage sets itself"):
        ParityParams.model_validate({"sglang": {"launch_flags": ["--speculative-num-draft-tokens", "5"]}})
    given = ["--speculative-draft-attention-backend", "torch_native"]
    assert ParityParams.model_validate({"sglang": {"launch_flags": given}}).sglang.launch_flags == tuple(given)
