from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.data.documents import read_documents, spans_of, write_documents
from specflow.data.quarantine import DataError
from specflow.data.rendering import Renderer
from specflow.data.tokenizing import Tokenized, add_conversation, refuse_useless
from tests.data.chat_helpers import CHATML, THINKING, tokenizer

TOK = tokenizer(CHATML)


def conversation(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]
    return {"id": "a", "split": "train", "kind": "k", "messages": messages, **more}


def tokenized(*rows: dict[str, Any], max_length: int = 512, tok: Any = TOK) -> Tokenized:
    result = Tokenized()
    for number, row in enumerate(rows, start=1):
        add_conversation(
            result, row, number=number, renderer=Renderer(tok), end_ids={tok.eos_token_id}, max_length=max_length
        )
    return result


def produced(prompt: str, answer: str, ids: list[int] | None = None, *, finish: str = "stop") -> dict[str, Any]:
    row = conversation(prompt, answer)
    answer_ids = TOK(answer, add_special_tokens=False)["input_ids"] if ids is None else ids
    end = [TOK.eos_token_id] if finish == "stop" else []
    prompt_ids = Renderer(TOK).ids(row["messages"][:1], answer=True)
    return {**row, "prompt_ids": prompt_ids, "answer_ids": answer_ids + end, "finish": finish, "greedy": True}


def test_produced_ids_are_the_document() -> None:
    row = produced("q", "the answer")
    result = tokenized(row)
    (document,) = result.documents
    assert document.ids == row["prompt_ids"] + row["answer_ids"]
    assert document.prompt_ids == row["prompt_ids"]
    assert document.supervised == [False] * len(row["prompt_ids"]) + [True] * len(row["answer_ids"])
    assert document.greedy
    assert result.counts["retokenised_differs"] == 0


def test_produced_ids_win_over_retokenisation_and_are_counted() -> None:
    o, w = TOK.convert_tokens_to_ids(["o", "w"])
    row = produced("q", "ow", [o, w])  # the tokenizer itself would merge them
    result = tokenized(row)
    assert result.documents[0].answer_ids == [o, w, TOK.eos_token_id]
    assert result.counts["retokenised_differs"] == 1


def test_answers_cut_by_length_are_kept_whole_and_flagged() -> None:
    result = tokenized(produced("q", "the answer", finish="length"))
    assert result.documents[0].ids[-1] != TOK.eos_token_id
    assert result.documents[0].supervised[-1]
    assert result.documents[0].finish == "length"
    assert result.counts["ended_by_length"] == 1


def test_truncation_keeps_the_exact_mask() -> None:
    row = produced("q", "abcdefgh")
    start = len(row["prompt_ids"])
    result = tokenized(row, max_length=start + 3)
    (document,) = result.documents
    assert document.ids == (row["prompt_ids"] + row["answer_ids"])[: start + 3]
    assert document.supervised == [False] * start + [True] * 3
    assert document.truncated
    assert result.counts["truncated"] == 1


def test_a_long_user_turn_is_set_aside_naming_truncation() -> None:
    row = conversation("z" * 200, "answer")
    result = tokenized(row, max_length=64)
    assert result.documents == []
    assert result.quarantined[0].reason == "truncated_away"
    assert result.quarantined[0].detail.startswith("truncation: the first supervised token is 21")
    with pytest.raises(DataError, match=r"the cause is truncation in 1 of them.*max_length = 64"):
        refuse_useless(result, max_length=64)
    assert len(tokenized(row, max_length=512).documents) == 1


def test_everything_supervised_is_refused() -> None:
    row = {**produced("q", "answer"), "prompt_ids": []}
    result = tokenized(row)
    assert [q.reason for q in result.quarantined] == ["all_tokens_supervised"]
    with pytest.raises(DataError, match="every token of all 1 conversations"):
        refuse_useless(result, max_length=512)


def test_nothing_supervised_is_refused() -> None:
    silent = tokenizer("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    result = tokenized(conversation("q", "a"), tok=silent)
    assert [q.reason for q in result.quarantined] == ["no_supervised_tokens"]
    with pytest.raises(DataError, match=r"no supervised token was found.*chat template"):
        refuse_useless(result, max_length=512)


def test_no_conversations_are_refused() -> None:
    with pytest.raises(DataError, match="no conversations"):
        refuse_useless(Tokenized(), max_length=8)


def test_rewritten_history_gives_a_document_per_turn() -> None:
    result = tokenized(conversation("q", "a", "r", "b"), tok=tokenizer(THINKING))
    assert [d.id for d in result.documents] == ["a#0", "a#1"]
    assert result.counts["history_rewritten"] == 1


def test_bad_rows_are_set_aside_with_their_line() -> None:
    result = tokenized(conversation("q", "a"), conversation("q"), conversation("q", "a"))
    assert [(q.row, q.reason) for q in result.quarantined] == [(2, "user_last")]
    assert len(result.documents) == 2


def test_documents_survive_the_file(tmp_path: Path) -> None:
    documents = tokenized(produced("q", "é the"), conversation("q", "a", "r", "b"), max_length=40).documents
    write_documents(tmp_path / "tokens.jsonl", documents)
    assert read_documents(tmp_path) == documents


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), max_size=12))
def test_spans_describe_the_mask(mask: list[bool]) -> None:
    spans = spans_of(mask)
    assert [any(a <= i < b for a, b in spans) for i in range(len(mask))] == mask
    assert all(a < b for a, b in spans)
    assert all(b < c for (_, b), (c, _) in pairwise(spans))
