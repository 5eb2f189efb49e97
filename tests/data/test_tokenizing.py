from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specflow.data.documents import TokenDocument, iterate_documents, read_documents, spans_of, write_documents
from specflow.data.quarantine import DataError, Quarantined, enforce_share
from specflow.data.rendering import Renderer
from specflow.data.stored import StoredDocuments
from specflow.data.tally import Tally, refuse_useless
from specflow.data.tokenizing import Options, RowTokenizer
from specflow.data.windows import windows
from tests.data.chat_helpers import CHATML, THINKING, tokenizer
from tests.data.families import PACK, TOOLS, assistant, tokenizer_of

TOK = tokenizer(CHATML)


def conversation(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]
    return {"id": "a", "split": "train", "kind": "k", "messages": messages, **more}


@dataclass
class Result:
    documents: list[TokenDocument]
    tally: Tally

    @property
    def quarantined(self) -> list[Quarantined]:
        return self.tally.quarantined

    @property
    def counts(self) -> Counter[str]:
        return self.tally.counts


def tokenized(*rows: dict[str, Any], max_length: int = 512, tok: Any = TOK, **options: Any) -> Result:
    made = RowTokenizer(Renderer(tok), {tok.eos_token_id}, Options(max_length=max_length, **options))
    result = Result([], Tally())
    for number, row in enumerate(rows, start=1):
        outcome = made.outcome(row, number)
        result.documents += outcome.documents
        result.tally.add(outcome)
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


@pytest.mark.parametrize(("answered", "expected"), [([1], True), (None, False)])
def test_greedy_answers_without_ids_are_greedy_where_only_they_are_learned(
    answered: list[int] | None, expected: bool
) -> None:
    (document,) = tokenized(conversation("q", "a", greedy=True, answered=answered)).documents
    assert document.greedy == expected
    (document,) = tokenized(conversation("q", "a", greedy=False, answered=answered)).documents
    assert not document.greedy


def test_answers_cut_by_length_are_kept_whole_and_flagged() -> None:
    result = tokenized(produced("q", "the answer", finish="length"))
    assert result.documents[0].ids[-1] != TOK.eos_token_id
    assert result.documents[0].supervised[-1]
    assert result.documents[0].finish == "length"
    assert result.counts["ended_by_length"] == 1


def test_an_answer_without_ids_that_ended_by_length_has_no_turn_end() -> None:
    (whole,) = tokenized(conversation("q", "a", "r", "the answer")).documents
    result = tokenized(conversation("q", "a", "r", "the answer", finish="length"))
    (cut,) = result.documents
    assert TOK.decode(whole.ids[len(cut.ids) :]) == "<|im_end|>\n"
    assert (cut.ids, cut.supervised) == (whole.ids[: len(cut.ids)], whole.supervised[: len(cut.ids)])
    assert (cut.finish, result.counts["ended_by_length"]) == ("length", 1)


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
        refuse_useless(result.tally, max_length=64)
    assert len(tokenized(row, max_length=512).documents) == 1


def test_everything_supervised_is_refused() -> None:
    row = {**produced("q", "answer"), "prompt_ids": []}
    result = tokenized(row)
    assert [q.reason for q in result.quarantined] == ["all_tokens_supervised"]
    with pytest.raises(DataError, match="every token of all 1 conversations"):
        refuse_useless(result.tally, max_length=512)


def test_nothing_supervised_is_refused() -> None:
    silent = tokenizer("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    result = tokenized(conversation("q", "a"), tok=silent)
    assert [q.reason for q in result.quarantined] == ["no_supervised_tokens"]
    with pytest.raises(DataError, match=r"no supervised token was found.*chat template"):
        refuse_useless(result.tally, max_length=512)


def test_no_conversations_are_refused() -> None:
    with pytest.raises(DataError, match="no conversations"):
        refuse_useless(Tally(), max_length=8)


def test_rewritten_history_gives_a_document_per_turn() -> None:
    result = tokenized(conversation("q", "a", "r", "b"), tok=tokenizer(THINKING))
    assert [d.id for d in result.documents] == ["a#0", "a#1"]
    assert result.counts["history_rewritten"] == 1


def rewritten(*lengths: int, **more: Any) -> dict[str, Any]:
    """A conversation whose turns are documents of their own, with answers of these lengths."""
    return conversation(*(text for n in lengths for text in ("q" * n, "a")), **more)


def test_a_row_that_gives_a_document_is_not_skipped_and_its_lost_documents_are_counted_apart() -> None:
    tok = tokenizer(THINKING)
    whole = [len(d.ids) for d in tokenized(rewritten(1, 1, 90, 1, 1), tok=tok).documents]
    assert len(whole) == 5
    result = tokenized(rewritten(1, 1, 90, 1, 1), conversation("q", "a"), tok=tok, max_length=whole[1])
    assert [d.id for d in result.documents] == ["a#0", "a#1", "a"]
    assert result.quarantined == []
    metrics = result.tally.metrics()
    assert metrics["documents_lost"] == {"truncated_away": 3}
    assert (metrics["rows"], metrics["documents"], metrics["quarantined"]) == (2, 3, 0)


def test_a_row_whose_documents_are_all_lost_is_one_skipped_row() -> None:
    result = tokenized(rewritten(90, 1, 1, 1, 1), conversation("q", "a"), tok=tokenizer(THINKING), max_length=64)
    (entry,) = result.quarantined
    assert (entry.row, entry.reason) == (1, "truncated_away")
    assert entry.detail.startswith("5 of 5 documents; truncation: the first supervised token is 1")
    enforce_share(result.quarantined, total=result.tally.rows, largest_share=0.5)
    assert result.tally.metrics()["documents_lost"] == {}


def test_bad_rows_are_set_aside_with_their_line() -> None:
    result = tokenized(conversation("q", "a"), conversation("q"), conversation("q", "a"))
    assert [(q.row, q.reason) for q in result.quarantined] == [(2, "user_last")]
    assert len(result.documents) == 2


def test_documents_survive_the_file(tmp_path: Path) -> None:
    documents = tokenized(produced("q", "é the"), conversation("q", "a", "r", "b"), max_length=40).documents
    write_documents(tmp_path / "tokens.jsonl", documents)
    assert read_documents(tmp_path) == documents == list(iterate_documents(tmp_path))
    stored = StoredDocuments(tmp_path)
    assert (list(stored), stored[-1:], len(stored)) == (documents, documents[-1:], len(documents))
    assert [ids.tolist() for ids in stored.ids] == [d.ids for d in documents]
    stored.close()


def test_stored_documents_take_four_bytes_a_token(tmp_path: Path) -> None:
    document = TokenDocument(
        id="d", split="train", kind="k", ids=[1000] * 500, supervised=[True] * 500, prompt_length=0
    )
    write_documents(tmp_path / "tokens.jsonl", [document] * 400)
    tracemalloc.start()
    stored = StoredDocuments(tmp_path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4 * 500 * 400 < held < 6 * 500 * 400
    assert stored[399] == document
    stored.close()


def test_documents_of_an_older_file_are_read(tmp_path: Path) -> None:
    line = {"id": "a", "split": "train", "kind": "k", "finish": "stop", "greedy": True, "truncated": False}
    (tmp_path / "tokens.jsonl").write_text(json.dumps({**line, "prompt_length": 1, "spans": [[1, 2]], "ids": [7, 8]}))
    (document,) = read_documents(tmp_path)
    assert (document.offset, document.thinking, document.supervised) == (0, None, [False, True])
    assert document.supervised_share == 0.5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), max_size=12))
def test_spans_describe_the_mask(mask: list[bool]) -> None:
    spans = spans_of(mask)
    assert [any(a <= i < b for a, b in spans) for i in range(len(mask))] == mask
    assert all(a < b for a, b in spans)
    assert all(b < c for (_, b), (c, _) in pairwise(spans))


def turn(prompt: list[int], answer: list[int], finish: str = "stop") -> dict[str, Any]:
    return {"prompt_ids": prompt, "answer_ids": answer, "finish": finish}


def supervised_texts(document: TokenDocument) -> list[str]:
    return [TOK.decode(document.ids[a:b]) for a, b in spans_of(document.supervised)]


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        (None, ["one<|im_end|>", "two<|im_end|>"]),
        ([1, 3], ["one<|im_end|>", "two<|im_end|>"]),
        ([3], ["two<|im_end|>"]),
    ],
)
def test_only_the_targets_own_turns_of_a_text_are_supervised(answered: list[int] | None, expected: list[str]) -> None:
    (whole,) = tokenized(conversation("q", "one", "r", "two")).documents
    (document,) = tokenized(conversation("q", "one", "r", "two", answered=answered)).documents
    assert document.ids == whole.ids
    assert supervised_texts(document) == expected


def test_where_history_is_rewritten_only_the_targets_own_turns_have_documents() -> None:
    row = conversation("q", "<think>\na\n</think>\n\none", "r", "<think>\nb\n</think>\n\ntwo")
    tok = tokenizer(THINKING)
    assert len(tokenized(row, tok=tok).documents) == 2
    (document,) = tokenized({**row, "answered": [3]}, tok=tok).documents
    last = tokenized(row, tok=tok).documents[-1]
    assert (document.ids, document.supervised) == (last.ids, last.supervised)


def test_a_blank_turn_of_known_ids_is_used_and_one_of_text_alone_is_not() -> None:
    row = {**produced("q", "-", [7]), "messages": conversation("q", " \n")["messages"]}
    result = tokenized(row, conversation("q", " \n"))
    assert [d.ids for d in result.documents] == [[*row["prompt_ids"], 7, TOK.eos_token_id]]
    assert [(q.row, q.reason) for q in result.quarantined] == [(2, "empty_content")]


def test_turns_whose_prompts_continue_are_one_document() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6, 7])]
    (document,) = tokenized(conversation("q", "a", "r", "b", turns=turns, greedy=True)).documents
    assert document.ids == [1, 2, 3, 4, 5, 6, 7]
    assert spans_of(document.supervised) == [[2, 4], [5, 7]]
    assert (document.id, document.prompt_ids, document.greedy) == ("a", [1, 2], True)


def test_turns_whose_history_was_rewritten_are_documents_of_their_own() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 4, 5], [6]), turn([1, 2, 4, 5, 6, 8], [9], "length")]
    result = tokenized(conversation("q", "a", "r", "b", "s", "c", turns=turns))
    assert [(d.id, d.ids, spans_of(d.supervised)) for d in result.documents] == [
        ("a#0", [1, 2, 3, 4], [[2, 4]]),
        ("a#1", [1, 2, 4, 5, 6, 8, 9], [[4, 5], [6, 7]]),
    ]
    assert [d.conversation for d in result.documents] == ["a", "a"]
    assert [d.finish for d in result.documents] == ["stop", "length"]
    assert result.counts["ended_by_length"] == 1


def test_last_turn_and_calls_of_produced_turns() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6, 7], "tool_calls")]
    row = conversation("q", "a", "r", "b", turns=turns)
    (document,) = tokenized(row, last_turn_only=True).documents
    assert spans_of(document.supervised) == [[5, 7]]
    (document,) = tokenized(row, supervise_tool_calls=False).documents
    assert spans_of(document.supervised) == [[2, 4]]


def test_rows_that_only_call_are_no_defects_where_calls_are_not_learned() -> None:
    called = PACK["tools"]["messages"][:2]
    rendered = {**conversation(), "messages": called, "tools": TOOLS}
    given = {**rendered, "prompt_ids": [1, 2], "answer_ids": [3, 4], "finish": "tool_calls"}
    rows = [conversation("q", "a"), rendered, given]
    result = tokenized(*rows, tok=tokenizer_of("qwen3"), supervise_tool_calls=False)
    assert [(q.row, q.reason) for q in result.quarantined] == [(2, "only_tool_calls"), (3, "only_tool_calls")]
    enforce_share(result.quarantined, total=3, largest_share=0.0)
    assert result.tally.metrics()["quarantine_reasons"] == {"only_tool_calls": 2}
    assert len(tokenized(*rows, tok=tokenizer_of("qwen3")).documents) == 3
    alone = tokenized(rendered, given, tok=tokenizer_of("qwen3"), supervise_tool_calls=False)
    with pytest.raises(DataError, match=r"all 2 conversations calls tools.*supervise_tool_calls"):
        refuse_useless(alone.tally, max_length=512)


def test_a_row_with_a_call_and_an_answer_beyond_the_length_is_truncated() -> None:
    messages = [*PACK["tools"]["messages"][:3], assistant("sunny and warm")]
    row = {**conversation(), "messages": messages, "tools": TOOLS}
    whole = tokenized(row, tok=tokenizer_of("qwen3"), supervise_tool_calls=False)
    assert len(whole.documents) == 1
    assert whole.tally.lost == {"only_tool_calls": 1}
    result = tokenized(row, tok=tokenizer_of("qwen3"), supervise_tool_calls=False, max_length=8)
    assert [q.reason for q in result.quarantined] == ["truncated_away"]


def test_rows_that_the_template_refuses_are_set_aside() -> None:
    made = "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}"
    result = tokenized(conversation("q", "a"), conversation("q", "a", "r", "b"), tok=tokenizer(made + CHATML))
    assert [(q.row, q.reason, q.detail) for q in result.quarantined] == [(2, "template_refused", "too many")]
    # What the target itself produced needs no template.
    row = {**conversation("q", "a", "r", "b"), "prompt_ids": [1], "answer_ids": [2], "finish": "stop"}
    result = tokenized(row, tok=tokenizer(made + CHATML))
    assert [d.ids for d in result.documents] == [[1, 2]]
    assert result.counts["retokenised_differs"] == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "not_an_object"),
        ("text", "not_an_object"),
        ({"messages": []}, "keys_missing"),
        ({**conversation("q", "a"), "messages": []}, "empty_messages"),
        ({**conversation("q", "a"), "messages": [{"role": "system", "content": "s"}]}, "no_user_turn"),
        ({**conversation("q", "a"), "messages": [{"role": "assistant", "content": "s"}]}, "no_user_turn"),
        ({**conversation("q", "a"), "messages": [{"role": "user", "content": 5}]}, "content_not_a_string"),
        ({**conversation("q", "a"), "messages": 5, "answer_ids": [1], "prompt_ids": [2]}, "messages_not_a_list"),
        *(({**conversation("q", "a", "r", "b"), "answered": p}, "answered_wrong") for p in ([], [1], [0, 3], 3, ["3"])),
    ],
)
def test_malformed_rows_never_stop_a_run(row: Any, reason: str) -> None:
    result = tokenized(row, conversation("q", "a"))
    assert [(q.row, q.reason) for q in result.quarantined] == [(1, reason)]
    assert len(result.documents) == 1


HALF = "\ud83d"
"""Of a pair that stands for one character: JSON can say it, UTF-8 cannot."""


def calling(arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {**conversation(), "messages": messages}


@pytest.mark.parametrize(
    "row",
    [
        conversation("q", f"a{HALF}"),
        conversation(HALF, "a"),
        {**conversation("q", "a"), "id": HALF},
        {**conversation("q", "a"), "kind": HALF},
        conversation("q", "a", chat_template_kwargs={"effort": HALF}),
        calling({"city": HALF}),
        calling(json.dumps({"city": HALF})),
        calling({HALF: 1}),
    ],
)
def test_half_a_surrogate_pair_sets_its_row_aside(row: dict[str, Any]) -> None:
    result = tokenized(row, conversation("q", "🙂"), tok=tokenizer_of("qwen3"))
    assert [(q.row, q.reason) for q in result.quarantined] == [(1, "not_unicode")]
    assert len(result.documents) == 1


def test_the_mode_of_a_row_goes_before_the_mode_of_the_stage() -> None:
    tok = tokenizer_of("smollm3")
    rows = [conversation("q", "a"), conversation("q", "a", thinking=False), conversation("q", "a", thinking=True)]
    result = tokenized(*rows, tok=tok, thinking=True)
    assert [("Mode: /think" in tok.decode(d.ids), d.thinking) for d in result.documents] == [
        (True, True),
        (False, False),
        (True, True),
    ]
    assert result.tally.metrics()["thinking"] == {"off": 1, "on": 2}


def test_arguments_of_the_template_reach_it() -> None:
    tok = tokenizer_of("gpt_oss")
    result = tokenized(conversation("q", "a", chat_template_kwargs={"reasoning_effort": "low"}), tok=tok)
    assert "Reasoning: low" in tok.decode(result.documents[0].ids)


def test_a_template_of_another_model_has_no_turn_end_and_says_so() -> None:
    """ChatML for a tokenizer that does not know its tokens: spans are right, and nothing ends them."""
    tok = PreTrainedTokenizerFast(tokenizer_object=bare_core(), unk_token="<unk>", eos_token="</s>")
    tok.chat_template = CHATML
    result = tokenized(conversation("q", "a b"), tok=tok)
    (document,) = result.documents
    assert tok.decode([i for i, s in zip(document.ids, document.supervised, strict=True) if s]) == "a b"
    assert result.counts["without_turn_end"] == 1


def bare_core() -> Tokenizer:
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*"abqx7Z", "user", "<unk>", "</s>"])}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return core


@settings(max_examples=150, deadline=None, derandomize=True)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=40), length=st.integers(2, 12), overlap=st.integers(1, 11))
def test_windows_supervise_every_token_once(mask: list[bool], length: int, overlap: int) -> None:
    assume(overlap < length and True in mask)
    document = TokenDocument(
        id="d",
        split="train",
        kind="k",
        ids=list(range(len(mask))),
        supervised=mask,
        prompt_length=mask.index(True),
        greedy=True,
    )
    seen: Counter[int] = Counter()
    for window in windows(document, length, overlap=overlap):
        assert window.ids == list(range(window.offset, window.offset + len(window.ids)))
        assert len(window.ids) <= length
        assert True in window.supervised
        assert window.prompt_length == window.supervised.index(True)
        assert window.greedy == (window.offset == 0)
        assert window.id == ("d" if window.offset == 0 else f"d@{window.offset}")
        seen.update(i for i, s in zip(window.ids, window.supervised, strict=True) if s)
        later = [i for i, s in zip(window.ids, window.supervised, strict=True) if s and window.offset]
        assert all(i - window.offset >= overlap for i in later)
    assert seen == Counter(i for i, s in enumerate(mask) if s)


def test_long_rows_are_shown_through_windows_and_held_out_ones_cut() -> None:
    text = "abcdefgh" * 5
    train, heldout = conversation("q", text), {**conversation("q", text), "split": "heldout"}
    result = tokenized(train, heldout, max_length=32, window_overlap=8)
    (whole,) = tokenized(train).documents
    *parts, cut = result.documents
    assert [d.offset for d in parts] == [0, 24, 48]
    assert sum(sum(d.supervised) for d in parts) == sum(whole.supervised)
    assert (cut.split, cut.ids, cut.truncated) == ("heldout", whole.ids[:32], True)
    assert (result.counts["windowed"], result.counts["truncated"]) == (1, 1)


def test_a_half_answer_is_kept_and_counted() -> None:
    (whole,) = tokenized(conversation("q", "abcdefgh")).documents
    for length in range(whole.prompt_length + 1, len(whole.ids)):
        result = tokenized(conversation("q", "abcdefgh"), max_length=length)
        assert result.documents[0].supervised == whole.supervised[:length]
        assert result.counts["truncated"] == 1
    for length in range(1, whole.prompt_length + 1):
        assert tokenized(conversation("q", "abcdefgh"), max_length=length).documents == []


def test_tallies_of_parts_add_up_to_that_of_the_whole() -> None:
    rows = [conversation("q" * (n + 1), "a" * (n + 2)) for n in range(40)] + [conversation("q")]
    whole, merged = tokenized(*rows).tally, Tally()
    for start in range(0, len(rows), 7):
        merged.merge(tokenized(*rows[start : start + 7]).tally)
    assert {**merged.metrics(), "quarantined": 0} == {**whole.metrics(), "quarantined": 0}
    metrics = whole.metrics()
    assert sum(metrics["lengths"]["counts"]) == sum(metrics["supervised_shares"]["counts"]) == 40
    documents = tokenized(*rows).documents
    for low, high, count in zip(
        metrics["lengths"]["edges"][:-1], metrics["lengths"]["edges"][1:], metrics["lengths"]["counts"], strict=True
    ):
        assert count == sum(low <= len(d.ids) < high for d in documents)
    for n, count in enumerate(metrics["supervised_shares"]["counts"]):
        assert count == sum(n <= 10 * d.supervised_share < n + 1 for d in documents)
