"""Cost tables: lookup as the serving engine does it, files both ways, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specflow.costs.beyond import Beyond
from specflow.costs.buckets import Bucketed, Buckets, captured_sizes
from specflow.costs.remembered import Remembered
from specflow.costs.sglang_tables import read_table, table_from_json, write_table
from specflow.costs.tables import AdditiveTable, RowTable, with_overhead

ROWS = RowTable(rows=(2, 4, 8), rounds_per_second=(100.0, 80.0, 50.0), max_rows=16)
ADDITIVE = AdditiveTable(
    bias_seconds=0.01, requests=(1, 4), alpha_seconds=(0.0, 0.003), rows=(1, 8, 16), theta_seconds=(0.0, 0.007, 0.023)
)


def test_rows_use_the_last_probe_that_is_not_above() -> None:
    found = ROWS.seconds(3, [1, 2, 3, 4, 7, 8, 99])
    assert found.tolist() == [0.01, 0.01, 0.01, 0.0125, 0.0125, 0.02, 0.02]


def test_additive_goes_straight_between_probes_and_stays_level_outside() -> None:
    assert float(ADDITIVE.seconds(2, 8)) == pytest.approx(0.01 + 0.001 + 0.007)
    assert ADDITIVE.seconds(9, [0, 12, 40]) == pytest.approx(0.013 + np.array([0.0, 0.015, 0.023]))
    slower = with_overhead(ADDITIVE, 0.002)
    for requests in (1, 2, 4):
        assert float(slower.seconds(requests, 5)) == pytest.approx(
            float(ADDITIVE.seconds(requests, 5)) + 0.002 * requests
        )


def test_beyond_goes_on_with_the_slope() -> None:
    beyond = Beyond(ADDITIVE)
    assert float(beyond.seconds(4, 16)) == float(ADDITIVE.seconds(4, 16))
    assert float(beyond.seconds(7, 24)) == pytest.approx(float(ADDITIVE.seconds(4, 16)) + 0.003 + 0.016)
    assert Beyond(ROWS).seconds(1, [8, 12]) == pytest.approx([0.02, 0.02 + 4 * 0.0075 / 4])
    assert (beyond.measured(4, 16), beyond.measured(5, 16), beyond.measured(4, 17)) == (True, False, False)
    assert (Beyond(ROWS).measured(99, 8), Beyond(ROWS).measured(1, 9)) == (True, False)


def test_buckets_make_steps() -> None:
    buckets = captured_sizes((1, 2, 4), 3)
    assert buckets.sizes == (4, 8, 16)
    stepped = Bucketed(ADDITIVE, buckets)
    assert stepped.seconds(1, [1, 4, 5, 8]) == pytest.approx(ADDITIVE.seconds(1, [4, 4, 8, 8]))
    with pytest.raises(ValueError, match="increasing whole numbers"):
        Buckets((4, 4))


def test_files(tmp_path: Path) -> None:
    for table in (ROWS, ADDITIVE):
        write_table(tmp_path / "t.json", table)
        assert read_table(tmp_path / "t.json") == table
    assert json.loads((tmp_path / "t.json").read_text()) == {
        "bias_seconds": 0.01, "bs_probes": [1, 4], "alpha_seconds": [0.0, 0.003],
        "m_probes": [1, 8, 16], "theta_seconds": [0.0, 0.007, 0.023],
    }  # fmt: skip
    write_table(tmp_path / "t.json", ROWS)
    assert "bias_seconds" not in (tmp_path / "t.json").read_text()


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"increasing.*2 probes and 1 values.*max_rows: 1 is below the last probe, 2"):
        RowTable(rows=(3, 2), rounds_per_second=(1.0,), max_rows=1)
    with pytest.raises(ValueError, match="expected positive numbers"):
        RowTable(rows=(1,), rounds_per_second=(0.0,), max_rows=1)
    with pytest.raises(ValueError, match="bias_seconds: expected more than 0"):
        AdditiveTable(bias_seconds=0.0, requests=(1,), alpha_seconds=(0.0,), rows=(1,), theta_seconds=(0.0,))
    for bad, reason in (("[]", "expected a mapping"), ('{"bias_seconds": 1}', "bs_probes"), ("{}", "sample_batch")):
        (tmp_path / "t.json").write_text(bad)
        with pytest.raises(ValueError, match=rf"t\.json: not a cost table: .*{reason}"):
            read_table(tmp_path / "t.json")
    with pytest.raises(ValueError, match="not a cost table"):
        table_from_json({"sample_batch_tokens": 3, "sample_steps_per_sec": [1.0], "max_batch_tokens": 3})


def test_a_remembered_table_answers_alike() -> None:
    asked = []

    class Counted:
        def seconds(self, requests: int, rows: Any) -> Any:
            asked.append(requests)
            return ADDITIVE.seconds(requests, rows)

    remembered = Remembered(Counted(), most=3)
    for _ in range(3):
        for requests in (1, 2):
            rows = np.arange(3 * requests + 1)
            assert remembered.seconds(requests, rows).tolist() == ADDITIVE.seconds(requests, rows).tolist()
    assert asked == [1, 2]
    assert float(remembered.seconds(2, 5)) == float(ADDITIVE.seconds(2, 5))
    # Beyond what is remembered, and between whole numbers.
    for requests, beyond in ((1, 4), (2, 2.5)):
        assert float(remembered.seconds(requests, beyond)) == float(ADDITIVE.seconds(requests, beyond))
    assert asked == [1, 2, 1, 2]
