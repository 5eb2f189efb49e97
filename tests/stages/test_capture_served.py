"""Capture from a server that speaks SGLang's interface: the right values, and every way in which it can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.data.documents import TokenDocument, read_documents
from specflow.features.store import FeatureReader
from specflow.stages import capture
from specflow.stages.contract import StageError
from specflow.targets.target import Target
from tests.serving.fake_sglang import Act, FakeSglang
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target, tree

LAYERS = (0, 1)
ASKED = (0, 1, 2)
"""Of four layers: the last but one is asked for as well."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("served")
    tokens_artifact(root / "tokens", greedy_documents(target_of(root), shared=5, other=7))
    return root


@pytest.fixture(scope="module")
def target(root: Path) -> Target:
    return target_of(root)


@pytest.fixture(scope="module")
def embedded(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = FakeContext(tmp_path_factory.mktemp("embedded"))
    run(root, context, engine="embedded")
    return context.output


@pytest.fixture(scope="module")
def calm(root: Path, target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server without bad moments gives."""
    context = FakeContext(tmp_path_factory.mktemp("calm"))
    with FakeSglang(target, ASKED) as server:
        run(root, context, server.url)
    return context.output


def target_of(root: Path) -> Target:
    return Target.load(tiny_target(root).path, precision="fp32", threads=1)


def run(root: Path, context: FakeContext, url: str | None = None, **changes: Any) -> dict[str, Any]:
    section = {"url": url, "retries": 4, "backoff": 0.01, "concurrency": 4, **changes.pop("sglang", {})}
    params = CaptureParams.model_validate(
        {
            "layer_ids": LAYERS,
            "shard_tokens": 300,
            "batch_tokens": 128,
            "precision": "fp32",
            "probe_rows": 50,
            "threads": 1,
            "engine": "sglang",
            "sglang": section,
            **changes,
        }
    )
    return dict(capture.run(inputs(tiny_target(root), artifact("tokens", root / "tokens")), params, context))


def documents(root: Path) -> list[TokenDocument]:
    return read_documents(root / "tokens")


def test_the_features_are_those_of_the_embedded_engine(
    root: Path, target: Target, embedded: Path, tmp_path: Path
) -> None:
    context = FakeContext(tmp_path)
    with FakeSglang(target, ASKED, behave=lambda n, ids: Act(wait=0.01 * (n % 3))) as server:
        metrics = run(root, context, server.url)
        assert server.asked == {tuple(d.ids): 1 for d in documents(root)}
        assert 2 <= server.most_in_flight <= 4
    body = server.bodies[0]
    assert body["sampling_params"]["max_new_tokens"] == 1
    assert body["return_hidden_states"] is True
    assert len({b["extra_key"] for b in server.bodies}) == len(server.bodies)
    one, two = FeatureReader(embedded), FeatureReader(context.output)
    assert two.contract == one.contract
    for i, document in enumerate(documents(root)):
        ours, theirs = two.document(i), one.document(i)
        assert ours.token_ids_T.tolist() == document.ids
        # Another number of rows in a pass adds in another order: now and then the last bit of a bfloat16.
        torch.testing.assert_close(ours.features_TKH.float(), theirs.features_TKH.float(), rtol=2**-7, atol=1e-5)
        torch.testing.assert_close(ours.last_hidden_TH.float(), theirs.last_hidden_TH.float(), rtol=2**-7, atol=1e-5)
    assert metrics["engine"] == "sglang"
    assert (metrics["server_version"], metrics["retried_requests"]) == ("0.5.23", 0)
    assert metrics["probe_error"] < 0.01
    json.dumps(metrics)


def test_bad_moments_are_lived_through_with_the_same_result(
    root: Path, target: Target, calm: Path, tmp_path: Path
) -> None:
    acts = {0: Act(status=500), 1: Act(status=503), 4: Act(status=429), 5: Act(drop=True), 9: Act(status=408)}
    rough = FakeContext(tmp_path)
    with FakeSglang(target, ASKED, behave=lambda n, ids: acts.get(n, Act())) as server:
        assert run(root, rough, server.url)["retried_requests"] == len(acts)
        assert sum(server.asked.values()) == len(documents(root)) + len(acts)
    assert tree(rough.output) == tree(calm)


def with_states(states: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda reply: {**reply, "meta_info": {**reply["meta_info"], "hidden_states": states}}


def test_rows_of_another_request_are_found_by_the_probe(root: Path, target: Target, tmp_path: Path) -> None:
    """Of the right shape, with the right ids, finite: only the values are another prompt's."""

    def behave(n: int, ids: list[int]) -> Act:
        foreign = fake.honest({"input_ids": [(t + 1) % 256 for t in ids]})["meta_info"]["hidden_states"]
        return Act(change=with_states(foreign)) if n == 4 else Act()

    with (
        FakeSglang(target, ASKED, behave=behave) as fake,
        pytest.raises(StageError, match="rows are those of another document"),
    ):
        run(root, FakeContext(tmp_path), fake.url)


def test_a_server_that_lies_about_its_layers_is_found_by_the_probe(root: Path, target: Target, tmp_path: Path) -> None:
    liar = FakeSglang(target, ASKED, behave=lambda n, ids: Act(change=swapped))
    with liar, pytest.raises(StageError, match="in another order: declared 0, 1, found 1, 0"):
        run(root, FakeContext(tmp_path), liar.url)


def swapped(reply: dict[str, Any]) -> dict[str, Any]:
    """The columns of layers 0 and 1 exchanged."""
    made = reply["meta_info"]["hidden_states"][0]
    return with_states([[row[64:128] + row[:64] + row[128:] for row in made]])(reply)


def test_a_dead_server_stops_the_stage_and_a_new_one_is_asked_only_for_the_rest(
    root: Path, target: Target, calm: Path, tmp_path: Path
) -> None:
    context = FakeContext(tmp_path / "work")

    def dies(n: int, ids: list[int]) -> Act:
        if n == 8:
            dying.die()
        return Act(drop=n >= 8)

    said = r"does not answer any more: 5 tries, (?s:.)*Finished shards are kept"
    with FakeSglang(target, ASKED, behave=dies) as dying, pytest.raises(StageError, match=said):
        run(root, context, dying.url)
    kept = list((context.scratch / "store").glob("shard-?????/COMMIT.json"))
    assert kept
    again = FakeContext(tmp_path / "work")
    with FakeSglang(target, ASKED) as server:
        run(root, again, server.url)
        assert 0 < sum(server.asked.values()) < len(documents(root))
    assert tree(again.output) == tree(calm)


def test_no_server_is_needed_when_nothing_is_left(root: Path, target: Target, tmp_path: Path) -> None:
    with FakeSglang(target, ASKED) as server:
        run(root, FakeContext(tmp_path), server.url, precision="auto")
    metrics = run(root, FakeContext(tmp_path), server.url, precision="auto")
    assert metrics["tokens_per_second"] is None


def test_memory_bounds_what_is_in_flight(root: Path, target: Target, tmp_path: Path) -> None:
    longest = max(len(d.ids) for d in documents(root))
    allowed = longest + 20
    sglang = {"memory_gb": allowed * 64 * 192 / 1e9, "concurrency": 16}
    with FakeSglang(target, ASKED, behave=lambda n, ids: Act(wait=0.02)) as server:
        run(root, FakeContext(tmp_path), server.url, sglang=sglang)
        assert server.most_in_flight >= 2
        assert server.most_tokens <= allowed


def test_a_prefill_in_pieces_bounds_it_too(root: Path, target: Target, tmp_path: Path) -> None:
    chunk = max(len(d.ids) for d in documents(root)) + 10
    says = {"chunked_prefill_size": chunk}
    with FakeSglang(target, ASKED, server=says, behave=lambda n, ids: Act(wait=0.02)) as server:
        run(root, FakeContext(tmp_path), server.url, sglang={"concurrency": 16})
        assert server.most_tokens <= chunk


def test_every_reason_is_said_at_once_with_the_command_that_would_do(
    root: Path, target: Target, tmp_path: Path
) -> None:
    says = {"quantization": "fp8", "speculative_algorithm": "EAGLE", "chunked_prefill_size": 16}
    with FakeSglang(target, ASKED, server=says) as fake, pytest.raises(StageError) as caught:
        run(root, FakeContext(tmp_path), fake.url)
    assert not fake.bodies
    text = str(caught.value)
    assert text.count("\n  - ") == 3
    assert "--speculative-algorithm DFLASH --return-aux-hidden-state-layer-ids 0 1 2 --disable-radix-cache" in text


def test_weights_that_differ_are_named(root: Path, target: Target, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(target.path, other)
    tensors = load_file(other / "model.safetensors")
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt", "saved": "anew"})
    with FakeSglang(target, ASKED, model={"model_path": str(other)}) as fake:
        run(root, FakeContext(tmp_path / "same"), fake.url)  # other bytes, the same tensors
    tensors["model.layers.2.mlp.up_proj.weight"][-1, -1] += 1.0
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with (
        FakeSglang(target, ASKED, model={"model_path": str(other)}) as fake,
        pytest.raises(StageError, match=r"other\) differ from the target's .*model\.layers\.2\.mlp\.up_proj\.weight"),
    ):
        run(root, FakeContext(tmp_path / "changed"), fake.url)


def test_an_address_without_a_server(root: Path, target: Target, tmp_path: Path) -> None:
    with FakeSglang(target, ASKED) as server:
        pass
    with pytest.raises(StageError, match=rf"{server.url} does not answer"):
        run(root, FakeContext(tmp_path), server.url, precision="auto")


def test_the_precision_asked_for_must_be_the_servers(root: Path, target: Target, tmp_path: Path) -> None:
    with (
        FakeSglang(target, ASKED) as server,
        pytest.raises(StageError, match=r"precision is bf16, .* computes in fp32"),
    ):
        run(root, FakeContext(tmp_path), server.url, precision="bf16")
