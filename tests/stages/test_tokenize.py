from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.config.tokenize import TokenizeParams
from specflow.data.documents import read_documents
from specflow.data.packing import pack_documents
from specflow.stages import tokenize
from specflow.stages.contract import StageError
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target, tree, write_lines

PROMPT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokenize")
    tiny_target(root)
    return root


def conversation(n: int, **more: Any) -> dict[str, Any]:
    messages = [*PROMPT, {"role": "assistant", "content": "the answer " * (n % 3 + 1)}]
    return {"id": f"r{n}", "split": "train" if n % 2 else "heldout", "kind": "k", "messages": messages, **more}


def run(root: Path, context: FakeContext, rows: list[Any], **params: Any) -> dict[str, Any]:
    path = write_lines(context.output.parent / "conversations" / "conversations.jsonl", rows).parent
    stage_inputs = inputs(tiny_target(root), artifact("conversations", path))
    return dict(tokenize.run(stage_inputs, TokenizeParams(**params), context))


def test_documents_and_metrics(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    rows = [conversation(n) for n in range(6)]
    metrics = run(root, context, rows)
    documents = read_documents(context.output)
    assert [d.id for d in documents] == [r["id"] for r in rows]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(root / "target")
    for row, document in zip(rows, documents, strict=True):
        supervised = [t for t, s in zip(document.ids, document.supervised, strict=True) if s]
        assert tokenizer.decode(supervised) == row["messages"][1]["content"] + "<|im_end|>"
        assert tokenizer.decode(document.prompt_ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert metrics["documents"] == metrics["rows"] == 6
    assert metrics["tokens"] == sum(len(d.ids) for d in documents)
    assert metrics["supervised_tokens"] == sum(sum(d.supervised) for d in documents)
    assert metrics["supervised_share"] == metrics["supervised_tokens"] / metrics["tokens"]
    assert sum(metrics["lengths"]["counts"]) == 6 == sum(metrics["supervised_shares"]["counts"])
    made = pack_documents([len(d.ids) for d in documents if d.split == "train"], limit=1024)
    assert metrics["packing"] == {"length": 1024, "packs": len(made.packs), "padding_share": made.padding_share}
    said = f"packs of 1024 tokens would be {len(made.packs)}, {made.padding_share:.2%} padding; "
    assert f"{said}training lays documents one after the other and pads nothing" in context.messages
    assert {k: v["documents"] for k, v in metrics["by_kind"].items()} == {"heldout/k": 3, "train/k": 3}
    json.dumps(metrics)


def test_produced_ids_are_used(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    row = conversation(1, prompt_ids=[7, 8, 9], answer_ids=[20, 21], finish="length", greedy=True)
    metrics = run(root, context, [row])
    (document,) = read_documents(context.output)
    assert (document.ids, document.supervised) == ([7, 8, 9, 20, 21], [False] * 3 + [True] * 2)
    assert metrics["counts"]["retokenised_differs"] == 1
    assert metrics["counts"]["ended_by_length"] == 1


def test_two_runs_give_the_same_bytes(root: Path, tmp_path: Path) -> None:
    contexts = [FakeContext(tmp_path / str(n)) for n in range(2)]
    for context in contexts:
        run(root, context, [conversation(n) for n in range(4)])
    assert tree(contexts[0].output) == tree(contexts[1].output)


def test_bad_rows_go_to_quarantine_up_to_a_share(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    rows = [conversation(n) for n in range(9)] + [{**conversation(9), "messages": PROMPT}]
    metrics = run(root, context, rows, max_skipped=0.1)
    assert (metrics["documents"], metrics["quarantine_reasons"]) == (9, {"user_last": 1})
    (line,) = (context.output / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "source": "conversations.jsonl",
        "row": 10,
        "reason": "user_last",
        "detail": "expected the last turn to be assistant's",
        "id": "r9",
    }
    with pytest.raises(StageError, match=r"1 of 10 rows \(10\.0%\) cannot be used, at most 5\.0%"):
        run(root, FakeContext(tmp_path), rows)


def test_text_that_is_not_unicode_ends_no_run(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    half = {"id": "\ud800", "messages": [*PROMPT, {"role": "assistant", "content": "a\udc00"}]}
    metrics = run(root, context, [conversation(0), {**conversation(1), **half}], max_skipped=0.5)
    assert (metrics["documents"], metrics["quarantine_reasons"]) == (1, {"not_unicode": 1})
    (line,) = (context.output / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "\ud800"


def test_a_corpus_lost_to_truncation_says_so(root: Path, tmp_path: Path) -> None:
    row = conversation(0)
    row["messages"] = [{"role": "user", "content": "z" * 200}, row["messages"][1]]
    with pytest.raises(StageError, match=r"the cause is truncation in 1 of them.*max_length = 64"):
        run(root, FakeContext(tmp_path), [row], max_length=64)


def test_an_unreadable_conversations_file_names_the_line(root: Path, tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    folder = tmp_path / "conversations"
    folder.mkdir()
    (folder / "conversations.jsonl").write_text(json.dumps(conversation(0)) + "\n{torn")
    with pytest.raises(StageError, match=r"conversations\.jsonl:2"):
        tokenize.run(inputs(tiny_target(root), artifact("conversations", folder)), TokenizeParams(), context)


def test_a_target_without_chat_template_is_an_error(root: Path, tmp_path: Path) -> None:
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(root / "target", bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    folder = write_lines(tmp_path / "c" / "conversations.jsonl", [conversation(0)]).parent
    with pytest.raises(StageError, match="no chat template"):
        tokenize.run(
            inputs(artifact("target", bare), artifact("conversations", folder)),
            TokenizeParams(),
            FakeContext(tmp_path / "work"),
        )


def test_any_number_of_workers_gives_the_same_bytes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specflow.data.streaming.CHUNK_BYTES", 2000)
    rows = [conversation(n) if n % 9 else {**conversation(n), "messages": PROMPT} for n in range(90)]
    made = []
    for workers in (1, 2):
        context = FakeContext(tmp_path / str(workers))
        metrics = run(root, context, rows, workers=workers, max_skipped=0.2)
        made.append((metrics, tree(context.output)))
        assert context.progresses[0][0] == context.progresses[0][1].done == 90
    assert made[0] == made[1]
    assert made[0][0]["quarantined"] == 10


def test_windows_that_would_not_advance_are_refused() -> None:
    with pytest.raises(ValueError, match="windows would not advance"):
        TokenizeParams(max_length=64, long_rows="window", window_overlap=64)
    assert TokenizeParams(max_length=64).long_rows == "cut"


def test_a_small_file_is_left_to_one_process(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"x")
    assert tokenize._workers(TokenizeParams(), path) == 1
    assert tokenize._workers(TokenizeParams(workers=3), path) == 3
