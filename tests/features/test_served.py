"""The capturer over a server that speaks SGLang's interface: the right values, and every reply that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.features.capture import Captured
from specflow.features.plan import Batch
from specflow.features.served import ServedCapturer
from specflow.targets.retrying import Retrying, ServerError
from specflow.targets.sglang.facts import Wanted
from specflow.targets.sglang.rows import WrongRows
from specflow.targets.sglang.server import Access, fit_server, layers_to_ask, read_facts
from specflow.targets.target import Target
from tests.serving.fake_sglang import Act, FakeSglang
from tests.stages.pipeline_helpers import tiny_target

LAYERS = (0, 1)
ASKED = (0, 1, 2)
DOCUMENTS = {i: [(7 * i + 3 * t) % 250 for t in range(20 + 5 * i)] for i in range(6)}
VICTIM = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The server's."""
    torch.set_num_threads(1)
    return Target.load(tiny_target(tmp_path_factory.mktemp("served")).path, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def ours(target: Target) -> Target:
    """The capturer's: the server runs its own on other threads."""
    return Target.load(target.path, precision="fp32", threads=1)


def access(url: str) -> Access:
    return Access(url=url, api_key=None, retrying=Retrying(retries=2, backoff=0.01), timeout=20, concurrency=3)


def wanted(path: Path, layer_ids: tuple[int, ...]) -> Wanted:
    config = json.loads((path / "config.json").read_text())
    return Wanted(target=path, config=config, layer_ids=layers_to_ask(layer_ids, 4), precision="fp32", longest=45)


@contextmanager
def capturer(server: FakeSglang, target: Target, layer_ids: tuple[int, ...] = LAYERS) -> Iterator[ServedCapturer]:
    at = access(server.url)
    fit = fit_server(at, read_facts(at), wanted(target.path, layer_ids), memory_bytes=10**9)
    with closing(ServedCapturer(fit, target, layer_ids, DOCUMENTS)) as made:
        yield made


def captured(server: FakeSglang, target: Target) -> list[Captured]:
    with capturer(server, target) as made:
        return [c for batch in (Batch(0, (0, 1)), Batch(8, (2, 3, 4)), Batch(0, (5,))) for c in made.run(batch)]


def test_features_are_those_of_the_target_rounded_once(target: Target, ours: Target) -> None:
    with FakeSglang(target, ASKED) as server:
        found = captured(server, ours)
        assert server.asked == {tuple(ids): 1 for ids in DOCUMENTS.values()}
    for document, made in zip(DOCUMENTS.values(), found, strict=True):
        alone = target.forward(torch.tensor([document]), target.new_cache(1, len(document)), layer_ids=LAYERS)
        assert alone.features_BTKH is not None
        assert torch.equal(made.features_TKH, alone.features_BTKH[0].bfloat16())
        assert torch.equal(made.last_hidden_TH, alone.last_hidden_BTH[0].bfloat16())


def test_a_server_that_returns_more_layers_serves_too(target: Target, ours: Target) -> None:
    with FakeSglang(target, ASKED) as server:
        with capturer(server, ours, (1,)) as made:
            [one] = made.run(Batch(0, (1,)))
        with capturer(server, ours) as made:
            [both] = made.run(Batch(0, (1,)))
    assert torch.equal(one.features_TKH, both.features_TKH[:, 1:])
    assert torch.equal(one.last_hidden_TH, both.last_hidden_TH)


def test_values_that_are_not_finite_come_as_such(target: Target, ours: Target) -> None:
    """SGLang writes null for them."""

    def spoil(made: list[list[Any]]) -> Any:
        return [*made[:2], [None, *made[2][1:]], *made[3:]]

    with FakeSglang(target, ASKED, behave=wrong_for_victim(rows(spoil))) as server:
        found = captured(server, ours)
    assert [c.finite for c in found] == [i != VICTIM for i in DOCUMENTS]
    assert found[VICTIM].features_TKH[2, 0, 0].isnan()


def wrong_for_victim(change: Callable[[dict[str, Any]], Any]) -> Callable[[int, list[int]], Act]:
    return lambda n, ids: Act(change=change) if ids == DOCUMENTS[VICTIM] else Act()


def changed(**meta: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda reply: {**reply, "meta_info": {**reply["meta_info"], **meta}}


def rows(change: Callable[[list[list[float]]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda reply: changed(hidden_states=[change(reply["meta_info"]["hidden_states"][0])])(reply)


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (changed(prompt_tokens=3), r"the server read 3 tokens, \d+ were sent"),
    (lambda reply: {**reply, "prompt_token_ids": [5, *reply["prompt_token_ids"][1:]]}, "other token ids .* first at 0"),
    (lambda reply: {**reply, "prompt_token_ids": reply["prompt_token_ids"][:-1]}, "other token ids than were sent"),
    (changed(hidden_states=None), "no hidden states: start the server with --enable-return-hidden-states"),
    (changed(hidden_states=[]), "no hidden states"),
    (changed(cached_tokens=7), r"took 7 of \d+ tokens from its prefix cache"),
    (rows(lambda made: made[7:]), r"\d+ rows of hidden states for \d+ tokens: the server prefilled in pieces"),
    (rows(lambda made: [row[:128] for row in made]), "rows of 128 numbers, expected 192"),
    (rows(lambda made: [made[0][:5], *made[1:]]), "no table of numbers"),
    (rows(lambda made: made[0]), r"shape \[192\]"),
    (rows(lambda made: [["x"] * 192 for _ in made]), "no table of numbers"),
    (rows(lambda made: torch.tensor(made).bfloat16().tolist()), "is to compute in fp32, its values are bf16"),
    (changed(finish_reason={"type": "abort", "message": "too long"}), "gave the request up: too long"),
    (lambda reply: "no json", "a reply that is no JSON"),
    (lambda reply: ["a list"], "a reply without meta_info"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_a_wrong_reply_is_refused_and_not_asked_for_again(
    target: Target, ours: Target, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with FakeSglang(target, ASKED, behave=wrong_for_victim(change)) as server:
        with pytest.raises((WrongRows, ServerError), match=said):
            captured(server, ours)
        assert server.asked[tuple(DOCUMENTS[VICTIM])] == 1


def test_a_wrong_reply_names_the_server_and_the_document(target: Target, ours: Target) -> None:
    server = FakeSglang(target, ASKED, behave=wrong_for_victim(changed(cached_tokens=7)))
    with server, pytest.raises(WrongRows, match=rf"{server.url}, document {VICTIM} \(35 tokens\): "):
        captured(server, ours)


def test_a_refused_request_is_not_asked_again(target: Target, ours: Target) -> None:
    with FakeSglang(target, ASKED, behave=lambda n, ids: Act(status=400)) as server:
        with pytest.raises(ServerError, match=r"/generate: HTTP 400"):
            captured(server, ours)
        assert set(server.asked.values()) == {1}


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"return_aux_hidden_state_layer_ids": [1, 2]}, {}, r"outputs of layers \[1, 2\] .*\[0, 1, 2\] are needed"),
    ({"aux_hidden_state_capture": None}, {}, "no hidden states of named layers"),
    ({"return_aux_hidden_state_layer_ids": None}, {}, "no hidden states of named layers"),
    ({"speculative_algorithm": "EAGLE"}, {}, "it speculates \\(EAGLE\\)"),
    ({"quantization": "fp8"}, {}, "its weights are quantised \\(fp8\\)"),
    ({"dtype": "bfloat16"}, {}, "computes in bf16"),
    ({"dtype": "float16"}, {}, "float16"),
    ({"chunked_prefill_size": 16}, {}, "prefills in pieces of 16"),
    ({"max_req_input_len": 20}, {}, r"it takes fewer than 20"),
    ({}, {"architectures": ["Qwen3ForCausalLM"]}, r"it serves Qwen3ForCausalLM .* the target is LlamaForCausalLM"),
]


@pytest.mark.parametrize(("server", "model", "said"), REFUSED)
def test_a_server_that_cannot_give_the_features_is_refused_with_both_sides_named(
    target: Target, ours: Target, server: dict[str, Any], model: dict[str, Any], said: str
) -> None:
    with FakeSglang(target, ASKED, server=server, model=model) as fake, pytest.raises(ServerError, match=said):
        captured(fake, ours)
    assert not fake.bodies
