"""What SGLang's layer ids mean, against the table of its hooks; checks of a server that need no server."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from specflow.targets.retrying import Retrying, ServerError
from specflow.targets.sglang.facts import ServerFacts, Wanted
from specflow.targets.sglang.launching import capture_arguments
from specflow.targets.sglang.layers import convention_for, outputs_meant
from specflow.targets.sglang.server import BYTES_PER_VALUE, Access, FeatureServer, fit_server, layers_to_ask

N = 32
LLAMA, QWEN, DEEPSEEK, GLM, GPT, MUSE = (
    "LlamaForCausalLM", "Qwen3ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "GptOssForCausalLM",
    "MuseGlimmerForConditionalGeneration",
)  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "method", "ids", "outputs"),
    [
        (LLAMA, "dflash", [2, 16, 30], (2, 16, 30)),
        (LLAMA, "dspark", [2, 16, 30], (2, 16, 30)),
        (LLAMA, "eagle3", [2, 16, 30], (2, 16, 30)),
        (QWEN, "eagle3", [1, 15, 28], (1, 15, 28)),
        (QWEN, "dflash", [28, 1, 15], (1, 15, 28)),  # columns come in the order of the layers
        (DEEPSEEK, "dflash", [2, 16, 30], (2, 16, 30)),
        (DEEPSEEK, "eagle3", [1, 15, 28], (1, 15, 28)),
        (DEEPSEEK, "eagle3", [2, 16, 29], (1, 15, 28)),
        (GLM, "eagle3", [0, 16], (-1, 15)),
        (GPT, "eagle3", [2, 16, 30], (2, 16, 30)),
        (GPT, "eagle3", [3, 17, N], (2, 16, 31)),
        (GPT, "dflash", [2, 31], (2, 31)),
        (MUSE, "dflash", [2, 16, 30], (1, 15, 29)),
    ],
)
def test_ids_by_architecture_and_convention(
    architecture: str, method: str, ids: list[int], outputs: tuple[int, ...]
) -> None:
    assert outputs_meant(architecture, method, ids, num_layers=N) == outputs


def wanted(architecture: str = LLAMA, **changes: Any) -> Wanted:
    config = {"architectures": [architecture], "num_hidden_layers": N, "hidden_size": 100, "dtype": "bfloat16"}
    values: dict[str, Any] = {"layer_ids": (1, 30), "precision": "bf16", "longest": 50, "config": config}
    return Wanted(target=Path("/nowhere/target"), **{**values, **changes})


@pytest.mark.parametrize("architecture", [LLAMA, QWEN, DEEPSEEK, GLM, GPT, "Qwen2ForCausalLM", "Gemma3ForCausalLM"])
def test_the_ids_that_a_server_is_started_with_mean_what_is_wanted(architecture: str) -> None:
    """The two directions of the translation agree, for every model whose server the stage may start."""
    asked = wanted(architecture, layer_ids=(2, 17, 30))
    arguments = capture_arguments(asked)
    first = arguments.index("--return-aux-hidden-state-layer-ids") + 1
    ids = [int(k) for k in arguments[first : first + 3]]
    method = arguments[arguments.index("--speculative-algorithm") + 1].lower()
    assert outputs_meant(architecture, method, ids, num_layers=N) == (2, 17, 30)
    assert convention_for(architecture).lower() == method


def test_the_last_layer_but_one_is_always_asked_for() -> None:
    assert layers_to_ask((0, 5), 12) == (0, 5, 10)
    assert layers_to_ask((0, 10), 12) == (0, 10)


SAYS = {
    "dtype": "bfloat16", "aux_hidden_state_capture": "dflash", "return_aux_hidden_state_layer_ids": [1, 30],
    "chunked_prefill_size": -1, "version": "0.5.23",
}  # fmt: skip
ACCESS = Access(url="http://x", api_key=None, retrying=Retrying(retries=0, backoff=1.0), timeout=1.0, concurrency=6)


def fit(says: dict[str, Any], *, memory: int, workers: int = 1, **changes: Any) -> FeatureServer:
    facts = ServerFacts(server={**SAYS, **says}, model={"model_path": "org/model", "architectures": [LLAMA]})
    return fit_server(ACCESS, facts, wanted(**changes), memory_bytes=memory, workers=workers)


TOKEN = BYTES_PER_VALUE * 2 * 100


def test_tokens_in_flight_are_what_memory_and_one_prefill_pass_allow() -> None:
    assert fit({}, memory=80 * TOKEN).tokens == 80
    assert fit({"chunked_prefill_size": 64, "page_size": 16}, memory=80 * TOKEN).tokens == 64
    assert fit({"return_aux_hidden_state_layer_ids": [1, 2, 3, 30]}, memory=200 * TOKEN).tokens == 100
    shared = fit({}, memory=160 * TOKEN, workers=3).share(3)
    assert pickle.loads(pickle.dumps(shared)) == shared  # it travels to worker processes
    assert (shared.tokens, shared.access.concurrency) == (53, 2)


@pytest.mark.parametrize(("memory", "workers"), [(49, 1), (99, 2)])
def test_a_document_that_does_not_fit_is_refused_with_the_numbers(memory: int, workers: int) -> None:
    assert fit({}, memory=(memory + 1) * TOKEN, workers=workers).tokens == memory + 1
    with pytest.raises(ServerError, match=rf"50 tokens, {TOKEN} bytes each .* raise them, or ask with fewer workers"):
        fit({}, memory=memory * TOKEN, workers=workers)


@pytest.mark.parametrize(
    ("dtype", "weights", "precision"),
    [
        ("float32", "bfloat16", "fp32"),
        ("torch.bfloat16", "float32", "bf16"),
        ("auto", "bfloat16", "bf16"),
        ("auto", "float32", None),  # SGLang makes float16 of it
        ("float16", "float16", None),
    ],
)
def test_the_arithmetic_of_a_server(dtype: str, weights: str, precision: str | None) -> None:
    assert ServerFacts(server={"dtype": dtype}, model={}).precision({"dtype": weights}) == precision
