"""regenerate, tokenize, capture, one after another on the tiny target, as a flow runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.config.regenerate import PromptSource, RegenerateParams
from specflow.config.tokenize import TokenizeParams
from specflow.data.documents import TokenDocument, read_documents, spans_of
from specflow.features.store import FeatureReader
from specflow.stages import capture, regenerate, tokenize
from tests.data.families import CALL, TOOLS, tokenizer_of
from tests.serving.fake_openai import FakeServer, completion
from tests.stages.capture_helpers import SYSTEM
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target, write_lines


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_from_prompts_to_features(tmp_path: Path, temperature: float) -> None:
    torch.set_num_threads(1)
    target = tiny_target(tmp_path)
    files = {}
    for split, texts in {"train": ["one", "two words", "three", "four of them"], "heldout": ["five"]}.items():
        rows = [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": t}] for t in texts]
        path = write_lines(tmp_path / f"{split}.jsonl", [{"messages": m} for m in rows])
        files[split] = (PromptSource(path=path, kind="k"),)
    asked = RegenerateParams(**files, max_new_tokens=12, temperature=temperature, precision="fp32", threads=1)
    contexts = {name: FakeContext(tmp_path / name) for name in ("regenerate", "tokenize", "capture")}
    made = regenerate.run(inputs(target), asked, contexts["regenerate"])
    conversations = artifact("conversations", contexts["regenerate"].output)
    counted = tokenize.run(inputs(target, conversations), TokenizeParams(), contexts["tokenize"])
    tokens = artifact("tokens", contexts["tokenize"].output)
    params = CaptureParams(layer_ids=(0, 2), batch_tokens=300, precision="fp32", threads=1, probe_rows=99)
    captured = capture.run(inputs(target, tokens), params, contexts["capture"])
    assert made["rows"] == counted["documents"] == captured["documents"] == 5
    assert made["answer_tokens"] == counted["supervised_tokens"]
    assert counted["tokens"] == captured["tokens"] == made["prompt_tokens"] + made["answer_tokens"]
    # Only greedy answers can be compared with the head's choice; then all of them are.
    assert captured["alignment_rows"] == (made["answer_tokens"] if temperature == 0 else 0)
    reader = FeatureReader(contexts["capture"].output)
    documents = read_documents(tokens.path)
    assert [reader.document(i).token_ids_T.tolist() for i in range(5)] == [d.ids for d in documents]
    assert reader.indices("heldout") == [4]
    assert captured["forward_share"] < 0.6


CALLED = [
    {"role": "system", "content": "You are a helper."},
    {"role": "user", "content": "weather"},
    {"role": "assistant", "content": "", "reasoning_content": "I ask", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
]


def prompts(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    held = [{"messages": [{"role": "user", "content": "held"}]}]
    files = {s: write_lines(folder / f"{s}.jsonl", r) for s, r in (("train", rows), ("heldout", held))}
    return {split: (PromptSource(path=path, kind="k"),) for split, path in files.items()}


def supervised_texts(document: TokenDocument, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(document.ids[a:b]) for a, b in spans_of(document.supervised)]


def test_tools_and_modes_reach_the_embedded_engine_and_the_documents(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    target = tiny_target(tmp_path)
    with_tools = {"messages": CALLED, "tools": TOOLS, "thinking": False}
    asked = RegenerateParams(
        **prompts(tmp_path, [with_tools, {"messages": CALLED[:2]}]), max_new_tokens=6, precision="fp32", threads=1
    )
    contexts = [FakeContext(tmp_path / name) for name in ("regenerate", "tokenize")]
    regenerate.run(inputs(target), asked, contexts[0])
    lines = (contexts[0].output / "conversations.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    assert [(r["tools"], r["thinking"], r["answered"]) for r in made] == [
        (TOOLS, False, [4]), (None, None, [2]), (None, None, [1]),
    ]  # fmt: skip
    counted = tokenize.run(inputs(target, artifact("conversations", contexts[0].output)), TokenizeParams(), contexts[1])
    documents = read_documents(contexts[1].output)
    assert [d.thinking for d in documents] == [False, None, None]
    assert counted["thinking"] == {"off": 1, "template default": 2}
    tokenizer = AutoTokenizer.from_pretrained(target.path)
    for row, document in zip(made, documents, strict=True):
        prompt = [{"content": "", **m} for m in row["messages"][:-1]]
        text = tokenizer.apply_chat_template(prompt, tools=row["tools"], add_generation_prompt=True, tokenize=False)
        assert document.prompt_ids == tokenizer(text, add_special_tokens=False)["input_ids"] == row["prompt_ids"]
        assert document.answer_ids == row["answer_ids"]
        assert spans_of(document.supervised) == [[len(row["prompt_ids"]), len(document.ids)]]


def test_tools_thoughts_and_modes_of_a_server_become_the_right_spans(tmp_path: Path) -> None:
    target = thinking_target(tmp_path)
    rows = [
        {"messages": [{"role": "user", "content": "what"}], "tools": TOOLS},
        {"messages": [*CALLED, {"role": "assistant", "content": "old"}, {"role": "user", "content": "who"}],
         "tools": TOOLS},
        {"messages": CALLED, "tools": TOOLS, "thinking": False},
        {"messages": [{"role": "user", "content": "how"}], "thinking": True},
        {"messages": [{"role": "user", "content": "then"}], "thinking": False},
    ]  # fmt: skip
    answers = {
        "what": completion("", finish="tool_calls", message={"reasoning_content": "hm", "tool_calls": [CALL]}),
        "who": completion("one"),
        "sunny": completion("sunny and warm"),
        "how": completion("first", message={"reasoning_content": "I think"}),
        "then": completion("second"),
        "held": completion("third"),
    }
    contexts = [FakeContext(tmp_path / name) for name in ("regenerate", "tokenize")]
    with FakeServer(answer=lambda body: answers[body["messages"][-1]["content"]]) as server:
        asked = RegenerateParams.model_validate(
            {**prompts(tmp_path, rows), "engine": "openai", "server": {"url": server.url}, "max_new_tokens": 8}
        )
        regenerate.run(inputs(target), asked, contexts[0])
        bodies = {body["messages"][-1]["content"]: body for body in server.bodies}
    assert [bodies[name].get("tools") for name in ("what", "who", "sunny", "how")] == [TOOLS, TOOLS, TOOLS, None]
    assert bodies["sunny"]["messages"][2]["tool_calls"] == [CALL]  # arguments are text again
    modes = [bodies[name].get("chat_template_kwargs", {}).get("enable_thinking") for name in ("who", "how", "then")]
    assert modes == [None, True, False]
    counted = tokenize.run(inputs(target, artifact("conversations", contexts[0].output)), TokenizeParams(), contexts[1])
    documents = read_documents(contexts[1].output)
    tokenizer = tokenizer_of("qwen3")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert [supervised_texts(d, tokenizer) for d in documents] == [
        [f"<think>\nhm\n</think>\n\n{call}<|im_end|>"],
        ["one<|im_end|>"],
        ["sunny and warm<|im_end|>"],
        ["<think>\nI think\n</think>\n\nfirst<|im_end|>"],
        ["second<|im_end|>"],
        ["third<|im_end|>"],
    ]
    context = tokenizer.decode(documents[2].prompt_ids)
    assert context.startswith("<|im_start|>system\nYou are a helper.\n\n<tools>")
    assert f"<think>\nI ask\n</think>\n\n{call}<|im_end|>" in context
    assert context.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert counted["quarantined"] == 0
    assert counted["thinking"] == {"off": 2, "on": 1, "template default": 3}


def thinking_target(root: Path) -> Any:
    """The tiny target with the template and tokenizer of a family that has tools and thoughts."""
    path = root / "thinking-target"
    shutil.copytree(tiny_target(root).path, path)
    tokenizer = tokenizer_of("qwen3")
    tokenizer.save_pretrained(path)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    return artifact("target", path)
