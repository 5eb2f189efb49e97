"""regenerate, tokenize, capture, one after another on the tiny target, as a flow runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.config.regenerate import PromptSource, RegenerateParams
from specflow.config.tokenize import TokenizeParams
from specflow.data.documents import read_documents
from specflow.features.store import FeatureReader
from specflow.stages import capture, regenerate, tokenize
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
