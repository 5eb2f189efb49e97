"""The vocab stage on the tiny target: payload, metrics, log, refusals."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from specflow.config.vocab import VocabParams
from specflow.data.documents import TOKENS_FILE, TokenDocument, write_documents
from specflow.data.vocabulary import read_map
from specflow.stages import vocab
from specflow.stages.contract import StageError
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target


def run(root: Path, context: FakeContext, size: int) -> dict[str, Any]:
    from transformers import AutoTokenizer

    target = tiny_target(root)
    tokenizer = AutoTokenizer.from_pretrained(target.path)
    folder = root / "tokens"
    folder.mkdir(exist_ok=True)

    def document(name: str, split: str, text: str) -> TokenDocument:
        prompt = tokenizer.encode("what is the answer", add_special_tokens=False)
        answer = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        mask = [False] * len(prompt) + [True] * len(answer)
        return TokenDocument(
            id=name, split=split, kind="k", ids=prompt + answer, supervised=mask, prompt_length=len(prompt)
        )

    documents = [document("t0", "train", " in the end"), document("h0", "heldout", " to the 漢 é end")]
    write_documents(folder / TOKENS_FILE, documents)
    return dict(vocab.run(inputs(target, artifact("tokens", folder)), VocabParams(size=size), context))


def test_the_map_its_coverage_and_what_is_missed(tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "work")
    metrics = run(tmp_path, context, 262)
    mapping = read_map(context.output)
    assert len(mapping.d2t_D) == metrics["size"] == 262
    assert len(mapping.t2d_V) == metrics["target_size"] == 300
    assert metrics["by_rule"] == 260  # 256 bytes and four special ones
    assert (metrics["by_count"], metrics["filled"]) == (2, 0)
    coverage = metrics["coverage"]
    assert coverage["train"]["all"]["covered"] < coverage["train"]["all"]["tokens"]
    assert coverage["heldout"]["Han"] == {"tokens": 3, "covered": 3}
    assert coverage["heldout"]["Latin, accented"] == {"tokens": 2, "covered": 2}
    stored = json.loads((context.output / "coverage.json").read_text())
    assert {k: stored[k] for k in coverage} == coverage
    assert [m["text"] for m in stored["most_missed_heldout"]] == [" to"]
    (table,) = context.messages
    assert "Han" in table
    json.dumps(metrics)


def test_a_corpus_with_too_few_tokens_is_filled_and_said(tmp_path: Path) -> None:
    context = FakeContext(tmp_path / "work")
    metrics = run(tmp_path, context, 290)
    assert metrics["filled"] == 290 - 260 - metrics["by_count"] > 20
    assert f"{metrics['filled']} others were taken" in context.messages[1]


@pytest.mark.parametrize(("size", "said"), [(301, "the target has only 300"), (260, "no room beside the 260")])
def test_impossible_sizes(tmp_path: Path, size: int, said: str) -> None:
    with pytest.raises(StageError, match=said):
        run(tmp_path, FakeContext(tmp_path / "work"), size)


def test_memory_does_not_grow_with_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specflow.data.vocabulary.BATCH_TOKENS", 1000)
    target, peaks = tiny_target(tmp_path), []
    for count in (1, 30, 300):  # the first one loads what is loaded once
        documents = [
            TokenDocument(
                id=f"{n}",
                split="train" if n else "heldout",
                kind="k",
                ids=[260 + n % 40] * 400,
                supervised=[False] + [True] * 399,
                prompt_length=1,
            )
            for n in range(count + 1)
        ]
        (tmp_path / str(count)).mkdir()
        write_documents(tmp_path / str(count) / TOKENS_FILE, documents)
        del documents
        tracemalloc.start()
        tokens = artifact("tokens", tmp_path / str(count))
        vocab.run(inputs(target, tokens), VocabParams(size=262), FakeContext(tmp_path / f"work-{count}"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 270 more documents would take over 8 MB as lists of numbers.
    assert peaks[2] - peaks[1] < 1_000_000
