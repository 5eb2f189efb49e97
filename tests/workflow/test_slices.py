"""Slices of a growing source: whole, the same in every run, and cut in two by content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.config.inputs import PromptSource
from specflow.config.regenerate import RegenerateParams
from specflow.config.retrain import RetrainParams
from specflow.workflow.slices import Slice, cut, sliced


def row(number: int, text: str | None = None) -> bytes:
    content = text or f"question {number}"
    return json.dumps({"id": f"r{number}", "messages": [{"role": "user", "content": content}]}).encode() + b"\n"


@given(
    total=st.integers(0, 40), more=st.integers(0, 20), rows=st.integers(2, 9), share=st.floats(0.01, 0.99),
    torn=st.booleans(),
)  # fmt: skip
def test_what_is_appended_changes_no_earlier_slice(
    tmp_path_factory: pytest.TempPathFactory, total: int, more: int, rows: int, share: float, torn: bool
) -> None:
    path = tmp_path_factory.mktemp("source") / "log.jsonl"
    lines = [row(i) for i in range(total + more)]
    last = lines[total][:-1] if torn and more else b""
    path.write_bytes(b"".join(lines[:total]) + last)
    before = list(cut(path, rows=rows, heldout_share=share))
    path.write_bytes(b"".join(lines))
    after = list(cut(path, rows=rows, heldout_share=share))
    assert len(before) == total // rows
    assert after[: len(before)] == before
    for found in after:
        own = set(lines[found.number * rows : (found.number + 1) * rows])
        assert set(found.train) | set(found.heldout) == own
        assert not set(found.train) & set(found.heldout)
        assert found.train
        assert len(found.heldout) == min(rows - 1, max(1, round(share * rows)))


def test_equal_prompts_are_on_one_side_whatever_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(row(i, f"question {i % 4}") for i in range(12)) + b"\n")
    (found,) = cut(path, rows=12, heldout_share=0.25)
    texts = [{json.loads(line)["messages"][0]["content"] for line in side} for side in (found.train, found.heldout)]
    assert not texts[0] & texts[1]
    assert len(found.heldout) == 3


def test_a_slice_of_copies_still_has_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(row(1) * 4)
    (found,) = cut(path, rows=4, heldout_share=0.5)
    assert (len(found.train), len(found.heldout)) == (2, 2)


def test_slices_are_files_of_the_store_that_later_rows_do_not_touch(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(map(row, range(9))))
    source = PromptSource(path=path, kind="chat", form="messages", thinking=True)
    base = RegenerateParams(train=(source,), heldout=(source,), max_new_tokens=7)
    params = RetrainParams(source=source, slice_rows=4, heldout_share=0.25)
    found = sliced(params, base, tmp_path / "store")
    assert list(found) == ["00000", "00001"]
    first = found["00000"]
    assert (first.max_new_tokens, first.train[0].kind, first.heldout[0].thinking) == (7, "chat", True)
    kept = first.train[0].path
    assert kept is not None
    assert kept.name == "log-00000-train.jsonl"
    assert kept.is_relative_to(tmp_path / "store" / ".slices")
    stamp = kept.stat().st_mtime_ns
    path.write_bytes(b"".join(map(row, range(13))))
    later = sliced(params, base, tmp_path / "store")
    assert {name: later[name] for name in found} == found
    assert list(later) == ["00000", "00001", "00002"]
    assert kept.stat().st_mtime_ns == stamp
    newest = sliced(params.model_copy(update={"newest": 1}), base, tmp_path / "store")
    assert list(newest) == ["00002"]
    kept.write_bytes(b"damaged")
    sliced(params, base, tmp_path / "store")
    expected = next(cut(path, rows=4, heldout_share=0.25))
    assert isinstance(expected, Slice)
    assert kept.read_bytes() == b"".join(expected.train)


def test_only_lines_are_cut(tmp_path: Path) -> None:
    for source in ({"dataset": "a/b"}, {"path": tmp_path}, {"path": tmp_path / "x.parquet"}):
        with pytest.raises(ValueError, match="only lines can be cut"):
            RetrainParams.model_validate({"source": {**source, "kind": "a"}})
    with pytest.raises(ValueError, match="slices are used whole"):
        RetrainParams.model_validate({"source": {"path": tmp_path / "x.jsonl", "kind": "a", "limit": 3}})
