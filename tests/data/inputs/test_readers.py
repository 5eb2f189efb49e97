"""Files of every format: all rows, once, with their numbers, however the file is cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.config.inputs import PromptSource
from specflow.data.inputs.readers import BLANK, files_of, plan
from specflow.data.inputs.readers.blank import Unreadable
from specflow.data.inputs.readers.json_array import _values
from specflow.data.json_lines import read_json_lines
from specflow.data.quarantine import DataError
from tests.data.inputs.helpers import asked, lines, prepared, source, texts


def read(path: Path, *, chunk_bytes: int = 1 << 24) -> list[tuple[int, Any]]:
    """(number in the file, value) of all chunks."""
    made, before = [], 0
    for chunk in plan(source(path), chunk_bytes=chunk_bytes).chunks:
        number = 0
        for number, value in chunk.rows():
            if value is not BLANK:
                made.append((before + number, value))
        before += number
    return made


LINES = st.lists(
    st.sampled_from(["", " ", "{}", '{"a": 1}', '"é 漢"', "[1, 2]", "5\r", '{"long": "' + "x" * 30 + '"}'])
)


@settings(max_examples=60, deadline=None)
@given(text=LINES, ends=st.booleans(), chunk_bytes=st.integers(1, 40), mark=st.booleans())
def test_lines_are_read_once_however_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, text: list[str], ends: bool, chunk_bytes: int, mark: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "p.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + ("\n".join(text) + ("\n" if ends else "")).encode())
    expected = [(n, json.loads(line)) for n, line in enumerate(text, start=1) if line.strip()]
    assert read(path, chunk_bytes=chunk_bytes) == expected


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
def test_unreadable_line_is_named_with_its_number(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(asked("a")) + "\n\n{broken\n")
    with pytest.raises(DataError, match=r"p\.jsonl:3: expected one JSON object per line, found '\{broken'"):
        prepared(tmp_path, [source(path)], chunk_bytes=chunk_bytes)
    with pytest.raises(DataError, match=r"p\.jsonl:3: expected one JSON object per line, found '\{broken'"):
        list(read_json_lines(path))
    # Beyond the limit nobody looks.
    assert texts(prepared(tmp_path, [source(path, limit=1)], chunk_bytes=chunk_bytes)) == ["a"]
    path.write_bytes(b'{"messages": "\xff"}\n')
    with pytest.raises(DataError, match=r"p\.jsonl:1: not UTF-8"):
        prepared(tmp_path, [source(path)])
    with pytest.raises(DataError, match=r"p\.jsonl:1: not UTF-8"):
        list(read_json_lines(path))


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_empty_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="the file is empty"):
        prepared(tmp_path, [source(path)])
    with pytest.raises(DataError, match="the file is empty"):
        list(read_json_lines(path))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found nothing"):
        prepared(tmp_path, [source(tmp_path / "no.jsonl")])
    with pytest.raises(DataError, match="found nothing"):
        list(read_json_lines(tmp_path / "no.jsonl"))


def test_what_json_writes_and_faster_parsers_refuse(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"a": NaN}\n{"a": 123456789012345678901234567890}\n{"a": "\\ud800"}\n')
    found = [value["a"] for _, value in read(path)]
    assert found[0] != found[0]
    assert found[1:] == [123456789012345678901234567890, "\ud800"]


@pytest.mark.parametrize("indent", [None, 2])
def test_json_array(tmp_path: Path, indent: int | None) -> None:
    rows = [asked(f"{i} é") for i in range(5)]
    path = tmp_path / "p.json"
    path.write_text("\n " + json.dumps(rows, indent=indent) + "\n", encoding="utf-8")
    assert read(path) == list(enumerate(rows, start=1))
    assert texts(prepared(tmp_path, [source(path, limit=3)])) == ["0 é", "1 é", "2 é"]


def test_json_file_of_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.json", [asked("a"), asked("b")])
    assert texts(prepared(tmp_path, [source(path)])) == ["a", "b"]


class Trickle:
    """A file that gives few characters at a time."""

    def __init__(self, text: str, sizes: random.Random) -> None:
        self._text, self._sizes = text, sizes

    def read(self, size: int = -1) -> str:
        count = len(self._text) if size < 0 else self._sizes.randint(1, 4)
        made, self._text = self._text[:count], self._text[count:]
        return made


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))),
    seed=st.integers(0, 9),
    indent=st.sampled_from([None, 1]),
)
def test_json_array_wherever_blocks_end(values: list[Any], seed: int, indent: int | None) -> None:
    file: Any = Trickle(json.dumps(values, indent=indent), random.Random(seed))
    assert list(_values(file)) == values


@pytest.mark.parametrize(
    ("text", "number"),
    [("[{}, {}", 3), ("[{} {}]", 2), ("[{}, oops]", 2), ("[{}] x", 2), ("[", 1), ("[,]", 1), ('[{"a": "', 1)],
)
def test_broken_array_names_the_row(tmp_path: Path, text: str, number: int) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(Unreadable) as error:
        read(path)
    assert error.value.number == number
    with pytest.raises(DataError, match=rf"p\.json: row {number}: expected a JSON array"):
        prepared(tmp_path, [source(path)])


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    calls = [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    rows = [
        asked("a"),
        {
            "messages": [
                {"role": "user", "content": "b"},
                {"role": "assistant", "tool_calls": calls},
                {"role": "tool", "content": "t"},
            ]
        },
        asked("c"),
    ]
    path = tmp_path / "p.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
    whole = prepared(tmp_path, [source(path)])
    assert texts(whole) == ["a", "t", "c"]
    # Columns that other rows have are not there.
    assert next(iter(whole.rows())).messages == [{"role": "user", "content": "a"}]
    assert list(whole.rows())[1].messages[1]["tool_calls"] == calls
    assert len(plan(source(path), chunk_bytes=1).chunks) == 3
    cut = prepared(tmp_path, [source(path)], chunk_bytes=1)
    assert list(cut.rows()) == list(whole.rows())
    assert [prompt.row for prompt in cut.rows()] == [1, 2, 3]
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="not a Parquet file"):
        prepared(tmp_path, [source(path)])


def test_datasets_saved_and_in_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset, DatasetDict

    rows = [asked(f"q{i}") for i in range(5)]
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    DatasetDict({"train": Dataset.from_list(rows[:2]), "test": Dataset.from_list(rows[2:])}).save_to_disk(
        tmp_path / "splits"
    )
    lines(tmp_path / "files" / "train.jsonl", rows[:3])
    lines(tmp_path / "files" / "test.jsonl", rows[3:])
    expected = [f"q{i}" for i in range(5)]
    assert texts(prepared(tmp_path, [source(tmp_path / "saved")])) == expected
    assert texts(prepared(tmp_path, [source(tmp_path / "saved", limit=2)])) == expected[:2]
    assert texts(prepared(tmp_path, [source(tmp_path / "splits", split="test")])) == expected[2:]
    assert texts(prepared(tmp_path, [source(tmp_path / "files")])) == expected[:3]
    assert texts(prepared(tmp_path, [source(tmp_path / "files", split="test")])) == expected[3:]
    assert [p.name for p in files_of(source(tmp_path / "files"))] == ["test.jsonl", "train.jsonl"]
    with pytest.raises(DataError, match=r"splits: datasets cannot read it: .*no split dev; there are train, test"):
        prepared(tmp_path, [source(tmp_path / "splits", split="dev")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="this is a directory here; give it as `path`"):
        prepared(tmp_path, [PromptSource(dataset="saved", kind="k")])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none: datasets cannot read it"):
        prepared(tmp_path, [source(tmp_path / "none")])


def test_a_revision_of_the_hub_is_resolved_to_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from huggingface_hub import HfApi

    from specflow.data.inputs.readers import resolved

    commit, asked_for = "c" * 40, []

    def info(_: HfApi, name: str, *, revision: str | None) -> Any:
        asked_for.append((name, revision))
        if revision == "gone":
            raise OSError("no such revision")
        return SimpleNamespace(sha=commit)

    monkeypatch.setattr(HfApi, "dataset_info", info)
    there = PromptSource(dataset="owner/name", kind="k")
    assert resolved(there).revision == commit
    assert resolved(there.model_copy(update={"revision": "main"})).revision == commit
    fixed = there.model_copy(update={"revision": "d" * 40})
    assert resolved(fixed) is fixed
    assert asked_for == [("owner/name", None), ("owner/name", "main")]
    with pytest.raises(
        DataError, match=r"owner/name:train: the hub does not tell the commit of its revision gone.*no such"
    ):
        resolved(there.model_copy(update={"revision": "gone"}))
    local = PromptSource(path=Path("x.jsonl"), kind="k")
    assert resolved(local) is local


def test_the_commit_is_read_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow.data.inputs import prepare as module
    from specflow.data.inputs.readers import Plan, json_lines

    commit, planned = "c" * 40, []
    path = lines(tmp_path / "p.jsonl", [asked("a")])

    def plan(source: PromptSource, *, chunk_bytes: int) -> Plan:
        planned.append(source.revision)
        return Plan(list(json_lines.chunks(path, chunk_bytes=chunk_bytes)), True)

    monkeypatch.setattr(module, "resolved", lambda source: source.model_copy(update={"revision": commit}))
    monkeypatch.setattr(module, "plan", plan)
    made = prepared(tmp_path, [PromptSource(dataset="owner/name", kind="k")])
    assert planned == [commit]
    assert made.summary()["sources"][0]["revision"] == commit
