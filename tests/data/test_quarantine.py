from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.data.quarantine import SELECTED, DataError, Quarantined, enforce_share, reasons, write_quarantine


def test_share_of_bad_rows_is_limited_and_the_reason_that_dominates_is_named() -> None:
    bad = [Quarantined(source="f", row=i, reason="no_user_turn" if i else "x") for i in range(5)]
    enforce_share(bad, total=100, largest_share=0.05)
    expected = r"5 of 99 rows .*Most often no_user_turn \(4 rows\).*'no_user_turn': 4, 'x': 1.*f:0: x"
    with pytest.raises(DataError, match=expected):
        enforce_share(bad, total=99, largest_share=0.05)
    assert reasons(bad) == {"no_user_turn": 4, "x": 1}


def test_only_the_first_bad_rows_are_shown_and_all_are_counted() -> None:
    bad = (Quarantined(source="f", row=i, reason="x", detail="d") for i in range(1, 1001))
    with pytest.raises(DataError) as error:
        enforce_share(bad, total=2000, largest_share=0.4)
    assert "1000 of 2000 rows (50.0%)" in str(error.value)
    assert "f:5: x (d). Correct" in str(error.value)
    assert "f:6" not in str(error.value)


def test_rows_that_were_asked_to_go_are_no_defects() -> None:
    chosen = [Quarantined(source="f", row=1, reason=reason) for reason in SELECTED]
    enforce_share(chosen, total=len(chosen), largest_share=0.0)
    with pytest.raises(DataError, match=f"1 of {len(chosen) + 1} rows"):
        enforce_share(
            [*chosen, Quarantined(source="f", row=1, reason="x")], total=len(chosen) + 1, largest_share=0.0
        )  # fmt: skip


def test_no_rows_are_an_error() -> None:
    with pytest.raises(DataError, match="found none"):
        enforce_share([], total=0, largest_share=1.0)


def test_written_rows_name_no_folder(tmp_path: Path) -> None:
    row = Quarantined(source=str(tmp_path / "one.jsonl"), row=2, reason="x", detail="é")
    write_quarantine(tmp_path / "quarantine.jsonl", iter([row]))
    text = (tmp_path / "quarantine.jsonl").read_text()
    assert json.loads(text) == {"source": "one.jsonl", "row": 2, "reason": "x", "detail": "é", "id": None}
    assert str(tmp_path) not in text


def test_text_that_is_not_unicode_can_be_written(tmp_path: Path) -> None:
    row = Quarantined(source="one.jsonl", row=2, reason="not_unicode", id='a\ud800"é')
    write_quarantine(tmp_path / "quarantine.jsonl", [row])
    assert json.loads((tmp_path / "quarantine.jsonl").read_text())["id"] == 'a\ud800"é'
