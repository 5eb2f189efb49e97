"""Schedulers in the configuration: what does not fit is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from specflow.config.bench import BenchParams
from specflow.config.loading import dump_config, load_config
from specflow.config.scheduler import SchedulerParams
from specflow.config.tree import TreeParams
from specflow.config.verify import VerifyParams
from specflow.drafters.dflash.params import Params
from tests.config.support import VALID, problems, write


def test_defaults_and_refusals() -> None:
    assert (SchedulerParams().mode, SchedulerParams().lag, SchedulerParams(explore=None).explore) == ("lagged", 2, None)
    for wrong in ({"shortest": 3, "longest": 2}, {"buckets": [4, 2]}, {"mode": "on"}, {"lag": 0}, {"explore": 1.0}):
        with pytest.raises(ValidationError):
            SchedulerParams.model_validate(wrong)
    for section in (BenchParams, VerifyParams):
        with pytest.raises(ValidationError, match="a scheduler grants rows of chains"):
            section(tree=TreeParams(), scheduler=SchedulerParams())


SCHEDULED = VALID + "bench:\n  scheduler: {mode: causal}\ncompare:\n  schedulers: {first: [lagged]}\n"


def test_drafters_without_confidence_are_refused_at_their_place(tmp_path: Path) -> None:
    found = problems(write(tmp_path, SCHEDULED))
    assert [p.path for p in found] == ["compare.schedulers", "bench.scheduler"]
    assert all(p.message == "a scheduler for drafters without confidence" for p in found)
    assert found[1].found == '"first (dflash), second (dflash)"'
    assert all(p.location.line is not None for p in found)
    (unknown,) = problems(write(tmp_path, VALID + "bench:\n  scheduler_drafters: [third]\n"))
    assert (unknown.path, unknown.message) == ("bench.scheduler_drafters", "no such drafter")


def test_a_scheduler_is_read_where_the_drafters_are_sure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Params, "gives_confidence", lambda self: True)
    config = load_config(write(tmp_path, SCHEDULED)).config
    assert config.bench.scheduler == SchedulerParams(mode="causal")
    assert config.compare.schedulers == {"first": ("lagged",)}
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml").config == config
