"""Features from a real SGLang server against the engine in this process and against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.data.documents import TokenDocument, read_documents
from specflow.features.store import FeatureReader
from specflow.stages import capture
from specflow.stages.contract import StageError
from specflow.targets.sglang import facts
from specflow.targets.sglang.process import SglangProcess
from specflow.targets.sglang.rows import WrongRows, rows_of
from tests.sglang.conftest import CPU_FLAGS, LAYERS, START_SECONDS
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target

HIDDEN = 64


def run(root: Path, context: FakeContext, layer_ids: tuple[int, ...], **section: Any) -> dict[str, Any]:
    params = CaptureParams.model_validate(
        {
            "layer_ids": layer_ids,
            "shard_tokens": 400,
            "batch_tokens": 200,
            "precision": "fp32",
            "probe_rows": 50,
            "threads": 1,
            "engine": "sglang",
            "sglang": {"concurrency": 4, "retries": 2, "start_timeout": START_SECONDS, **section},
        }
    )
    return dict(capture.run(inputs(tiny_target(root), artifact("tokens", root / "tokens")), params, context))


def transformers_states(root: Path, ids: list[int]) -> tuple[torch.Tensor, ...]:
    """The embedding, the output of every layer but the last, and the state after the final norm; ``[T, H]`` each."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(root / "target", dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        states = model.eval()(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return tuple(state[0] for state in states)


def assert_is_the_target(root: Path, output: Path, layer_ids: tuple[int, ...]) -> float:
    """Every row of every document; returns the share of stored numbers that are transformers' own to the bit."""
    reader, equal, total = FeatureReader(output), 0, 0
    documents: list[TokenDocument] = read_documents(root / "tokens")
    assert len(reader) == len(documents)
    for i, document in enumerate(documents):
        found, states = reader.document(i), transformers_states(root, document.ids)
        assert found.token_ids_T.tolist() == document.ids
        pairs = [(found.features_TKH[:, k], states[layer + 1]) for k, layer in enumerate(layer_ids)]
        for ours, theirs in [*pairs, (found.last_hidden_TH, states[-1])]:
            torch.testing.assert_close(ours.float(), theirs, rtol=2**-7, atol=1e-5)
            equal += int((ours == theirs.bfloat16()).sum())
            total += ours.numel()
    return equal / total


def test_a_running_server_gives_the_target_s_features(root: Path, server: SglangProcess, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    metrics = run(root, context, (0, 1), url=server.url)
    share = assert_is_the_target(root, context.output, (0, 1))
    assert share > 0.999, share
    assert metrics["probe_error"] < 0.005
    assert metrics["alignment_share"] > 0.95
    assert metrics["server_version"] == facts.TESTED_VERSION


def test_a_prefix_that_the_server_knows_costs_no_rows(root: Path, server: SglangProcess, tmp_path: Path) -> None:
    """Its prefix cache is on, and every prompt has been seen by now; once more gives the same bytes."""
    for name in ("one", "two"):
        run(root, FakeContext(tmp_path / name), (0, 1), url=server.url)
    one, two = (FeatureReader(tmp_path / name / "output-0") for name in ("one", "two"))
    for i in range(len(one)):
        assert torch.equal(one.document(i).features_TKH, two.document(i).features_TKH)


def test_rows_from_its_prefix_cache_are_missing_and_noticed(root: Path, server: SglangProcess) -> None:
    """What happens without a key of its own: the second answer has fewer rows."""
    ids = read_documents(root / "tokens")[0].ids
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_hidden_states": True,
        "return_prompt_token_ids": True,
    }
    replies = [httpx.post(f"{server.url}/generate", json=body, timeout=120).json() for _ in range(2)]
    width = len(LAYERS) * HIDDEN
    assert rows_of(replies[0], ids, width=width).shape == (len(ids), width)
    cached = replies[1]["meta_info"]["cached_tokens"]
    assert cached > 0
    assert len(replies[1]["meta_info"]["hidden_states"][0]) == len(ids) - cached
    with pytest.raises(WrongRows, match=rf"took {cached} of {len(ids)} tokens from its prefix cache"):
        rows_of(replies[1], ids, width=width)


def test_raw_rows_are_transformers_to_the_bit(root: Path, server: SglangProcess) -> None:
    """fp32 as it comes, before it is stored as bfloat16; each column is its own layer and no neighbour."""
    ids = read_documents(root / "tokens")[3].ids
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_hidden_states": True,
        "extra_key": "alone",
    }
    reply = httpx.post(f"{server.url}/generate", json=body, timeout=120).json()
    rows_TKH = torch.from_numpy(rows_of(reply, ids, width=len(LAYERS) * HIDDEN)).view(len(ids), len(LAYERS), HIDDEN)
    states = transformers_states(root, ids)
    for k, layer in enumerate(LAYERS):
        errors = [float((rows_TKH[:, k] - state).norm() / state.norm()) for state in states[: len(LAYERS) + 1]]
        assert min(range(len(errors)), key=errors.__getitem__) == layer + 1
        assert errors[layer + 1] < 1e-6
        assert min(errors[layer], errors[layer + 2] if layer + 2 < len(errors) else 1.0) > 0.1


def test_ids_taken_for_those_of_the_next_layer_fail_the_stage(
    root: Path, server: SglangProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is wrong by one: the server's numbers are right, our reading of them is not."""
    honest = facts.outputs_meant

    def late(*arguments: Any, **named: Any) -> tuple[int, ...]:
        return tuple(k + 1 for k in honest(*arguments, **named))

    monkeypatch.setattr(facts, "outputs_meant", late)
    with pytest.raises(StageError, match=r"match layer 0 better|last_hidden captured in a batch differs"):
        run(root, FakeContext(tmp_path), (1,), url=server.url)


def test_a_server_started_by_the_stage_ends_with_it(root: Path, sglang_python: Path, tmp_path: Path) -> None:
    """With the convention of the stage's choice; another one than the running server's, the same layers."""
    context = FakeContext(tmp_path)
    metrics = run(root, context, (0, 2), python=sglang_python, launch_flags=CPU_FLAGS)
    assert assert_is_the_target(root, context.output, (0, 2)) > 0.999
    assert metrics["engine"] == "sglang"
    assert any("--speculative-algorithm DFLASH" in message for message in context.messages)
    log = (context.scratch / "sglang.log").read_text()
    assert "fired up and ready" in log
    assert not processes_in(context.scratch)


def test_a_server_that_does_not_start_says_why(root: Path, sglang_python: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"the server ended with exit code \d+(?s:.)*--no-such-flag"):
        run(root, FakeContext(tmp_path), (0, 2), python=sglang_python, launch_flags=("--no-such-flag",))


def processes_in(directory: Path) -> list[int]:
    """Processes whose current directory is ``directory``: that is where a server is started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == directory:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
