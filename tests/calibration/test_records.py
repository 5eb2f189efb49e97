"""Records go to disk and back; those that must not be calibrated on are refused, all reasons at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specflow.calibration.records import RecordsError
from specflow.calibration.round_lines import read_rounds, records_of, write_rounds
from specflow.calibration.sglang_records import read_shards, shard_paths
from specflow.calibration.sglang_sts import StsTemperatures, read_sts, write_sts
from tests.calibration.synthetic import synthetic

ROW: dict[str, Any] = {
    "request": "a", "logits": [2.5, -3.0], "accepted": 1, "proposed": 2, "verify_len": 3, "cap_trim": 0,
}  # fmt: skip


def problems_of(path: Path, rows: list[Any]) -> list[str]:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    with pytest.raises(RecordsError) as caught:
        read_rounds(path)
    return caught.value.problems


def test_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    records = synthetic([1.3, 0.7], rounds=60)
    names = [f"prompt {i}" for i in range(3)]
    write_rounds(tmp_path / "records.jsonl", records, names)
    back = read_rounds(tmp_path / "records.jsonl")
    assert back.logits_NM.tobytes() == records.logits_NM.tobytes()
    assert back.accepted_N.tolist() == records.accepted_N.tolist()
    assert back.request_N.tolist() == records.request_N.tolist()
    assert np.array_equal(back.accepted_NM(), [[a > i for i in range(2)] for a in records.accepted_N])


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path / "bad.jsonl",
        [
            ROW,
            {**ROW, "logits": [2.0]},
            {**ROW, "verify_len": 2},
            {**ROW, "verify_len": 2, "cap_trim": 1},
            {**ROW, "accepted": 3},
            {**ROW, "proposed": 3, "logits": [1.0, 2.0, 3.0], "verify_len": 4},
            {**ROW, "logits": [float("nan"), 2.0]},
            "{torn",
            {"request": "a"},
        ],
    )
    text = "\n".join(found)
    assert "bad.jsonl:8: not a round" in text
    assert "bad.jsonl:9: not a round: expected the fields accepted, cap_trim" in text
    assert "1 of 7 rounds have not one logit per proposal: truncated records (first: line 2)" in text
    assert "2 of 7 rounds were not verified in full" in text
    assert (
        "1 of 7 rounds were cut by a scheduler (cap_trim above 0): collect with the scheduler off (first: line 4)"
        in text
    )
    assert "1 of 7 rounds accepted fewer than 0 or more than were proposed (first: line 5)" in text
    assert "1 of 7 rounds have another number of proposals than the first (2)" in text
    assert "1 of 5 rounds have logits that are not finite" in text
    assert len(found) == 8


def test_probabilities_are_refused(tmp_path: Path) -> None:
    rows = [{**ROW, "logits": [0.9, round(0.01 * i, 2)]} for i in range(10)]
    assert "these are probabilities" in problems_of(tmp_path / "p.jsonl", rows)[0]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*rows, {**ROW, "logits": [0.9, 1.01]}]))
    assert read_rounds(tmp_path / "p.jsonl").rounds == 11
    assert problems_of(tmp_path / "none.jsonl", []) == ["none.jsonl: no rounds; expected at least one"]


def shard(path: Path, logits: Any, mask: Any) -> Path:
    torch.save({"logits": torch.as_tensor(logits), "prefix_mask": torch.as_tensor(mask)}, path)
    return path


def test_files_of_a_server(tmp_path: Path) -> None:
    records = synthetic([1.0, 1.0], rounds=100)
    mask = records.accepted_NM().astype(np.float32)
    for part in (0, 1, 10, 2):
        rows = slice(25 * min(part, 3), 25 * min(part, 3) + 25)
        shard(tmp_path / f"stem.{part}.pt", records.logits_NM[rows], mask[rows])
    paths = shard_paths(tmp_path)
    assert [p.name for p in paths] == ["stem.0.pt", "stem.1.pt", "stem.2.pt", "stem.10.pt"]
    back = read_shards(paths)
    assert np.array_equal(back.logits_NM, records.logits_NM)
    assert np.array_equal(back.accepted_N, records.accepted_N)
    assert back.request_N.tolist() == [q for q in range(4) for _ in range(25)]  # at most 64 rows stand for a request
    assert shard_paths(paths[0]) == [paths[0]]


def test_bad_files_of_a_server(tmp_path: Path) -> None:
    good = [[2.0, -3.0]]
    paths = [
        shard(tmp_path / "a.pt", good * 20, [[1.0, 0.0]] * 20),
        shard(tmp_path / "b.pt", good * 3, [[1.0, 0.0]] * 2),
        shard(tmp_path / "c.pt", good * 2, [[0.0, 1.0], [1.0, 1.0]]),
        shard(tmp_path / "d.pt", [[0.0, 0.0], [4.0, 1.0]], [[0.0, 0.0]] * 2),
        shard(tmp_path / "e.pt", [[0.5, 0.5]] * 20, [[0.5, 0.5]] * 20),
        shard(tmp_path / "f.pt", [[2.0] * 3], [[1.0] * 3]),
    ]
    paths.append(tmp_path / "g.pt")
    paths[-1].write_bytes(paths[0].read_bytes()[:200])
    torch.save({"other": torch.zeros(1)}, tmp_path / "h.pt")
    with pytest.raises(RecordsError) as caught:
        read_shards([*paths, tmp_path / "h.pt"])
    text = str(caught.value)
    assert "b.pt: truncated: logits and prefix_mask are [3, 2] and [2, 2]" in text
    assert "c.pt: 1 of 2 rounds accept a position after one that was not accepted" in text
    assert "d.pt: 1 of 2 rounds have only zeros as logits: padding of a scheduled run" in text
    assert "e.pt: all 40 values lie between 0 and 1: these are probabilities" in text
    assert "e.pt: prefix_mask has values other than 0 and 1" in text
    assert "g.pt: cannot be read, perhaps cut short" in text
    assert "h.pt: expected `logits` and `prefix_mask`" in text
    assert "the files have 2 and 3 proposals" in text
    with pytest.raises(RecordsError, match=r"no \.pt files"):
        read_shards([])


def test_temperatures_file(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    found = StsTemperatures(
        temperatures=(0.5, 1.0), dataset="x", num_samples=7, ece_before=(0.2, 0.1), ece_after=(0.1, 0.1)
    )
    write_sts(path, found)
    assert json.loads(path.read_text()) == {
        "temperatures": [0.5, 1.0], "dataset": "x", "num_samples": 7, "ece_before": [0.2, 0.1], "ece_after": [0.1, 0.1],
    }  # fmt: skip
    assert read_sts(path, num_proposals=2) == found
    with pytest.raises(ValueError, match="2 temperatures, the drafter makes 3 proposals"):
        read_sts(path, num_proposals=3)
    for bad in ('{"temperatures": []}', '{"temperatures": [1.0, 0.0]}', "{}", "[", '{"temperatures": [NaN]}'):
        path.write_text(bad)
        with pytest.raises(ValueError, match=r"sts\.json: not a file of temperatures"):
            read_sts(path)
    path.write_text('{"temperatures": [2.0], "later": 1}')
    assert read_sts(path).temperatures == (2.0,)


def test_the_engine_s_own_logits_may_all_lie_between_0_and_1() -> None:
    """As those of a drafter that has learned little do."""
    rows = [{**ROW, "logits": [0.9, round(0.01 * i, 2)]} for i in range(10)]
    assert records_of(enumerate(rows, 1), where="held-out rounds", foreign=False).rounds == 10
