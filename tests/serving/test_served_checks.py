"""Counts of a server against the embedded engine's, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.serving.requests import Request
from specflow.serving.verification.answers import Answer, Answers, histogram, served_answer
from specflow.serving.verification.served import accept_length, check_counts

REQUESTS = [Request(id=f"r{i}", kind="k", prompt=(1,)) for i in range(2)]


def answers(path: Path, *rows: tuple[int, ...]) -> Answers:
    found = Answers(path)
    for index, row in enumerate(rows):
        found.add(index, Answer(tokens=(1, 2), accepted=row))
    return found


def test_histogram_and_accept_length() -> None:
    assert histogram([0, 2, 2, 0, 3]) == (2, 0, 2, 1)
    assert histogram([]) == ()
    assert accept_length((2, 0, 2, 1)) == pytest.approx(1 + 7 / 5)
    assert accept_length(()) is None


def test_in_fp32_every_prompt_s_counts_are_equal(tmp_path: Path) -> None:
    embedded = answers(tmp_path / "a", (5, 3), (2, 0, 1))
    swapped = answers(tmp_path / "b", (2, 0, 1), (5, 3))  # the totals are equal
    assert check_counts(REQUESTS, served=embedded, embedded=embedded, precision="fp32", gap=0.5).passed
    found = check_counts(REQUESTS, served=swapped, embedded=embedded, precision="fp32", gap=0.5)
    assert not found.passed
    assert (found.numbers["differing_prompts"], found.numbers["largest_gap"]) == (2, 0.0)
    assert found.failures[0].startswith("prompt r0 (k): rounds by accepted proposals [2, 0, 1] served, [5, 3]")


def test_where_the_server_rounds_shares_are_compared_by_position(tmp_path: Path) -> None:
    # 10 rounds each: 6 and 5 accept one, 2 and 4 accept two, none and 1 accept three.
    served, embedded = answers(tmp_path / "a", (4, 4, 2), ()), answers(tmp_path / "b", (5, 1, 3, 1), ())
    for gap, passed in ((0.19, False), (0.21, True)):
        found = check_counts(REQUESTS, served=served, embedded=embedded, precision="bf16", gap=gap)
        assert found.passed is passed
        assert found.numbers["largest_gap"] == pytest.approx(0.2)


def test_answers_survive_a_kill_within_a_line(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers(path, (5, 3), (2, 0, 1))
    with path.open("a") as file:
        file.write('{"index":2,"tok')
    again = Answers(path)
    assert len(again) == 2
    assert again.answer(1) == Answer(tokens=(1, 2), accepted=(2, 0, 1))
    again.forget()
    assert len(Answers(path)) == 0


def test_a_reply_without_rounds_and_one_that_contradicts_itself() -> None:
    assert served_answer({"output_ids": [7], "meta_info": {}}) == Answer(tokens=(7,), accepted=())
    meta = {"spec_verify_ct": 3, "spec_num_correct_drafts": 2, "spec_correct_drafts_histogram": [2, 0, 1, 0]}
    assert served_answer({"output_ids": [7, 8], "meta_info": meta}).accepted == (2, 0, 1)
    with pytest.raises(ValueError, match=r"3 rounds that accept 1 proposals, found the histogram \[2, 0, 1, 0\]"):
        served_answer({"output_ids": [7, 8], "meta_info": {**meta, "spec_num_correct_drafts": 1}})
