from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.data.prompts import merge, read_json_lines, read_prompts
from specflow.data.quarantine import DataError, Quarantined, enforce_share, reasons, write_quarantine

GOOD = {"messages": [{"role": "user", "content": "hi"}]}


def message(role: Any, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


U, A, S = message("user", "u"), message("assistant", "a"), message("system", "s")


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "not_an_object"),
        ("text", "not_an_object"),
        ({}, "no_messages"),
        ({"prompt": "hi"}, "no_messages"),
        ({"messages": "hi"}, "messages_not_a_list"),
        ({"messages": []}, "empty_messages"),
        ({"messages": ["hi"]}, "message_not_an_object"),
        ({"messages": [S]}, "no_user_turn"),
        ({"messages": [A]}, "no_user_turn"),
        ({"messages": [A, U]}, "assistant_first"),
        ({"messages": [S, A, U]}, "assistant_first"),
        ({"messages": [U, U]}, "user_after_user"),
        ({"messages": [U, A]}, "assistant_last"),
        ({"messages": [U, A, A, U]}, "assistant_after_assistant"),
        ({"messages": [U, S]}, "system_not_first"),
        ({"messages": [S, S, U]}, "system_not_first"),
        ({"messages": [message("wizard", "x")]}, "unknown_role"),
        ({"messages": [message(None, "x")]}, "unknown_role"),
        ({"messages": [message("user", None)]}, "content_not_a_string"),
        ({"messages": [message("user", 5)]}, "content_not_a_string"),
        ({"messages": [message("user", [{"type": "text", "text": "x"}])]}, "content_not_a_string"),
        ({"messages": [message("user", " \n")]}, "empty_content"),
        ({"messages": [U, message("assistant", None, tool_calls=[{}]), U]}, "tool_call_only"),
    ],
)
def test_bad_rows_are_set_aside_with_reason_and_line(tmp_path: Path, row: Any, reason: str) -> None:
    found = read_prompts(write(tmp_path / "p.jsonl", GOOD, row, GOOD), split="train", kind="k")
    assert [p.row for p in found.rows] == [1, 3]
    assert [(q.row, q.reason) for q in found.quarantined] == [(2, reason)]
    assert found.total == 3


def test_good_rows_keep_order_ids_and_only_role_and_content(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": [S, {**U, "name": "n"}]}, {"messages": [U, A, message("user", "v")]}]
    found = read_prompts(write(tmp_path / "p.jsonl", *rows), split="heldout", kind="k")
    assert [p.id for p in found.rows] == ["a", "heldout/k/p/00002"]
    assert found.rows[0].messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert len(found.rows[1].messages) == 3


def test_limit_counts_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, [], GOOD, GOOD)
    assert read_prompts(path, split="train", kind="k", limit=2).total == 2


def test_unreadable_line_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n{broken\n")
    with pytest.raises(DataError, match=r"p\.jsonl:3: expected one JSON object per line, found '\{broken'"):
        list(read_json_lines(path))
    path.write_bytes(b'{"messages": "\xff"}\n')
    with pytest.raises(DataError, match=r"p\.jsonl:1: not UTF-8"):
        list(read_json_lines(path))


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_empty_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="the file is empty"):
        list(read_json_lines(path))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found nothing"):
        list(read_json_lines(tmp_path / "no.jsonl"))


def test_a_file_of_another_form_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [GOOD, GOOD])
    with pytest.raises(
        DataError, match=r"none of 1 rows is a usable prompt; the first bad one is line 1: not_an_object"
    ):
        read_prompts(path, split="train", kind="k")


def test_held_out_prompts_never_train_and_ids_are_unique(tmp_path: Path) -> None:
    def rows(name: str, split: str, *texts: str) -> Any:
        made = [{"id": f"{t}-{i}", "messages": [message("user", t)]} for i, t in enumerate(texts)]
        return read_prompts(write(tmp_path / name, *made), split=split, kind="k")

    merged = merge(
        [rows("t.jsonl", "train", "one", "two"), rows("u.jsonl", "train", "one"), rows("h.jsonl", "heldout", "two")]
    )
    assert [(p.split, p.id) for p in merged.rows] == [("train", "one-0"), ("heldout", "two-0")]
    assert [(q.reason, q.id) for q in merged.quarantined] == [("also_heldout", "two-1"), ("repeated_id", "one-0")]
    assert merged.total == 4


def test_two_files_of_one_kind_and_split_do_not_collide(tmp_path: Path) -> None:
    parts = [
        read_prompts(
            write(tmp_path / name, {"messages": [message("user", name)]}, ["bad"]), split="train", kind="k"
        )
        for name in ("one.jsonl", "two.jsonl")
    ]  # fmt: skip
    merged = merge(parts)
    assert [p.id for p in merged.rows] == ["train/k/one/00001", "train/k/two/00001"]
    write_quarantine(tmp_path / "quarantine.jsonl", merged.quarantined)
    made = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    assert [(q["source"], q["row"]) for q in made] == [("one.jsonl", 2), ("two.jsonl", 2)]
    assert str(tmp_path) not in (tmp_path / "quarantine.jsonl").read_text()


def test_share_of_bad_rows_is_limited() -> None:
    bad = [Quarantined(source="f", row=i, reason="no_user_turn" if i else "x") for i in range(5)]
    enforce_share(bad, total=100, largest_share=0.05)
    with pytest.raises(DataError, match=r"5 of 99 rows .*'no_user_turn': 4, 'x': 1.*f:0: x"):
        enforce_share(bad, total=99, largest_share=0.05)
    assert reasons(bad) == {"no_user_turn": 4, "x": 1}
