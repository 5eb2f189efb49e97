"""SGLang's own loaders take our temperatures and cost tables, and its fitter agrees where the rules are the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specflow.calibration.measures import expected_calibration_error
from specflow.calibration.records import ConfidenceRecords
from specflow.calibration.sglang_records import read_shards, shard_paths
from specflow.calibration.sglang_sts import StsTemperatures, write_sts
from specflow.calibration.sts import FitRules, fit_sts, survival_of
from specflow.costs.sglang_tables import write_table
from specflow.scheduling.budget import host_budget
from tests.calibration.synthetic import synthetic
from tests.costs.test_tables import ADDITIVE, ROWS

LOADERS = """
import json, sys
from sglang.srt.speculative.dspark_components.dspark_sts import load_sts_calibration_from_path
from sglang.srt.speculative.dspark_components.dspark_sps import load_sps_table_from_path
root = sys.argv[1]
sts = load_sts_calibration_from_path(root + "/sts.json")
rows, additive = (load_sps_table_from_path(root + "/" + n) for n in ("rows.json", "additive.json"))
print(json.dumps({
    "sts": [sts.temperatures, sts.dataset, sts.num_samples, sts.ece_before, sts.ece_after],
    "kinds": [type(rows).__name__, type(additive).__name__],
    "rows": [1.0 / rows.lookup(m) for m in range(1, 20)],
    "additive": [[additive.step_time(num_reqs=r, budget=b) for b in range(20)] for r in range(1, 8)],
}))
"""
FITTER = """
import json, sys
from sglang.benchmark.dspark_sts_fit import default_temperature_grid, fit_sts_temperatures, load_collected_shards
logits, mask = load_collected_shards(data_glob=sys.argv[1] + "/*.pt")
print(json.dumps(fit_sts_temperatures(logits=logits, prefix_mask=mask, grid=default_temperature_grid())))
"""
PLANNER = """
import json, sys
import torch
from sglang.srt.speculative.dspark_components.dspark_planner import DSparkScheduleConfig, compute_verify_token_budget
from sglang.srt.speculative.dspark_components.dspark_sps import load_sps_table_from_path
root = sys.argv[1]
cases = json.load(open(root + "/cases.json"))
tables = [load_sps_table_from_path(root + "/" + n) for n in ("rows.json", "additive.json")]
print(json.dumps([[compute_verify_token_budget(
    history_survival_probs=torch.tensor(case, dtype=torch.float32), sps_table=table,
    cfg=DSparkScheduleConfig(gamma=len(case[0]))).budget for table in tables] for case in cases]))
"""


def answer(python: Path, program: str, root: Path) -> Any:
    done = subprocess.run([python, "-c", program, root], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_its_loaders_take_our_files(sglang_python: Path, tmp_path: Path) -> None:
    sts = StsTemperatures(
        temperatures=(0.5, 1.0, 3.1),
        dataset="held out",
        num_samples=9,
        ece_before=(0.2, 0.1, 0.3),
        ece_after=(0.1,) * 3,
    )
    write_sts(tmp_path / "sts.json", sts)
    write_table(tmp_path / "rows.json", ROWS)
    write_table(tmp_path / "additive.json", ADDITIVE)
    found = answer(sglang_python, LOADERS, tmp_path)
    assert found["sts"] == [[0.5, 1.0, 3.1], "held out", 9, [0.2, 0.1, 0.3], [0.1] * 3]
    assert found["kinds"] == ["SpsCostTable", "SpsAdditiveCostTable"]
    assert found["rows"] == pytest.approx(ROWS.seconds(1, np.arange(1, 20)))
    ours = [ADDITIVE.seconds(r, r + np.arange(20)).tolist() for r in range(1, 8)]
    assert np.array(found["additive"]) == pytest.approx(np.array(ours))


def test_its_fitter_agrees_where_the_rules_do(sglang_python: Path, tmp_path: Path) -> None:
    """On the rounds that we fit on, where every temperature is kept; ties and scarcity are ours alone."""
    fitted = fit_sts(synthetic([2.0, 0.5, 4.0], rounds=8000), FitRules(bootstraps=10))
    assert {p.reason for p in fitted.positions} == {"fitted"}
    save(tmp_path / "shards", fitted.fit)
    theirs = answer(sglang_python, FITTER, tmp_path / "shards")
    assert theirs["temperatures"] == pytest.approx(fitted.temperatures, rel=1e-5)
    for temperatures, name in ((None, "ece_before"), (fitted.temperatures, "ece_after")):
        survival = survival_of(fitted.fit.logits_NM, temperatures)
        ours = [expected_calibration_error(survival[:, i], fitted.fit.accepted_N > i) for i in range(3)]
        assert theirs[name] == pytest.approx(ours, abs=2e-4)
    assert np.array_equal(read_shards(shard_paths(tmp_path / "shards")).logits_NM, fitted.fit.logits_NM)
    # Documented difference: where nothing can be told, it takes the coldest temperature, we keep 1.
    silent = ConfidenceRecords(
        logits_NM=np.zeros((200, 1), np.float32), accepted_N=np.arange(200) % 2, request_N=np.arange(200) // 10
    )
    save(tmp_path / "silent", silent)
    assert answer(sglang_python, FITTER, tmp_path / "silent")["temperatures"] == pytest.approx([0.1])
    assert fit_sts(silent, FitRules(bootstraps=10)).temperatures == (1.0,)


def save(directory: Path, records: ConfidenceRecords) -> None:
    directory.mkdir()
    mask = torch.as_tensor(records.accepted_NM().astype(np.float32))
    torch.save({"logits": torch.as_tensor(records.logits_NM), "prefix_mask": mask}, directory / "x.0.pt")


def test_its_budget_is_ours(sglang_python: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    cases = [np.cumprod(random.random((int(random.integers(1, 6)), 4)), axis=1).astype(np.float32) for _ in range(60)]
    (tmp_path / "cases.json").write_text(json.dumps([case.tolist() for case in cases]))
    write_table(tmp_path / "rows.json", ROWS)
    write_table(tmp_path / "additive.json", ADDITIVE)
    found = answer(sglang_python, PLANNER, tmp_path)
    ours = [[host_budget(case.astype(np.float64), table).positions for table in (ROWS, ADDITIVE)] for case in cases]
    assert found == ours
    assert len({budget for pair in ours for budget in pair}) > 4
