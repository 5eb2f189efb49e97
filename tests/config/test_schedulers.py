"""Schedulers in the configuration: what does not fit is told with its place."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from specflow.config.bench import BenchParams
from specflow.config.scheduler import SchedulerParams
from specflow.config.tree import TreeParams
from specflow.config.verify import VerifyParams


def test_defaults_and_refusals() -> None:
    assert (SchedulerParams().mode, SchedulerParams().lag, SchedulerParams(explore=None).explore) == ("lagged", 2, None)
    for wrong in ({"shortest": 3, "longest": 2}, {"buckets": [4, 2]}, {"mode": "on"}, {"lag": 0}, {"explore": 1.0}):
        with pytest.raises(ValidationError):
            SchedulerParams.model_validate(wrong)
    for section in (BenchParams, VerifyParams):
        with pytest.raises(ValidationError, match="a scheduler grants rows of chains"):
            section(tree=TreeParams(), scheduler=SchedulerParams())
