from __future__ import annotations

import os
import time
from array import array
from pathlib import Path

import pytest

from specflow.data import answers
from specflow.data.answers import Answer, AnswerLog, prompt_hash, read_answers
from specflow.data.quarantine import DataError


def answer(n: int) -> Answer:
    text = "two lines\n\u2028of it"  # whatever splits lines elsewhere
    return Answer(
        id=f"r{n}", turn=n % 2, prompt_sha256=prompt_hash([n]), text=text, tokens=array("i", [n, n + 1]), finish="stop"
    )


def test_answers_survive_every_cut_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # hundreds of them take seconds
    path = tmp_path / "answers.jsonl"
    with AnswerLog(path) as log:
        for n in range(3):
            log.append(answer(n))
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    cuts = {*range(0, len(data), 9), *(end + n for end in [0, *ends] for n in (-1, 0, 1))}
    for cut in sorted(cuts & set(range(len(data) + 1))):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert read_answers(path) == {(f"r{n}", n % 2): answer(n) for n in range(whole)}
        with AnswerLog(path) as log:  # what is appended to a torn file must be readable, too
            log.append(answer(9))
        assert sorted(read_answers(path)) == [(f"r{n}", n % 2) for n in [*range(whole), 9]]


def test_no_file_is_no_answers(tmp_path: Path) -> None:
    assert read_answers(tmp_path / "answers.jsonl") == {}


def test_a_damaged_line_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with AnswerLog(path) as log:
        for n in range(3):
            log.append(answer(n))
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0\0\0\n", b"{}\n", b"[1]\n", b'{"id": "r1\n', b"\xff\n"):
        path.write_bytes(lines[0] + damaged + lines[2])
        with pytest.raises(DataError, match=r"answers\.jsonl:2: expected an answer as JSON.*delete this line"):
            read_answers(path)
        assert path.read_bytes() == lines[0] + damaged + lines[2]


def test_the_last_answer_before_a_pause_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(answers, "SYNC_SECONDS", 0.05)
    monkeypatch.setattr(os, "fsync", synced.append)
    with AnswerLog(tmp_path / "answers.jsonl") as log:
        for expected in (1, 2):
            log.append(answer(1))
            log.append(answer(2))
            deadline = time.monotonic() + 10
            while len(synced) < expected:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.2)
            assert len(synced) == expected  # once for both, and not again without an answer
