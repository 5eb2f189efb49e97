"""Rows of the measurements and their table, with a clock that is not a GPU's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from specflow_kernels import measuring
from specflow_kernels.catalogue import load, load_all
from specflow_kernels.measuring import Job, Limits, jobs_of, measure, measure_jobs, peers_of
from specflow_kernels.peers import Peer
from specflow_kernels.tables import measured_table

LIMITS = Limits(bytes_per_second=1e12, operations_per_second=1e15)


def measured(monkeypatch: pytest.MonkeyPatch, *, budget: float) -> tuple[list[Job], list[Any]]:
    """Rows of the convolution with public kernels of which none is here; every measurement takes a second."""
    ran: list[Any] = []

    def seconds(function: Callable[[], Any]) -> float:
        ran.append(function())
        return 2e-6

    def failing(_: dict[str, Any]) -> Callable[..., Any]:
        raise ValueError("takes no taps")

    monkeypatch.setattr(measuring, "_seconds", seconds)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    whole = load("grouped_dynamic_conv")
    peers = {
        "absent": Peer(package="no-such-kernels", computes="the same", prepare=failing),
        "narrow": Peer(package="torch", computes="half of it", prepare=failing),
    }
    operator = replace(whole, kernel=whole.reference, peers=peers, cases=whole.cases[:1])
    jobs = list(jobs_of([operator]))
    measure_jobs(jobs, LIMITS, torch.device("cpu"), budget=budget, spent=lambda: float(len(ran)))
    return jobs, ran


def test_row_has_a_time_for_what_ran_and_a_note_for_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, ran = measured(monkeypatch, budget=100.0)
    whole, case, row = load("grouped_dynamic_conv"), jobs[1].case, jobs[1].row
    assert [job.row.direction for job in jobs] == ["forward", "forward and backward"]
    inputs = case.make(torch.device("cpu"))
    assert row.bytes == whole.cost(**inputs).bytes + whole.backward_cost(**inputs).bytes  # type: ignore[misc]
    assert row.seconds == {"triton": 2e-6, "absent": None, "narrow": None, "reference": 2e-6, "torch.compile": 2e-6}
    assert row.notes == {"absent": "not installed: pip install no-such-kernels", "narrow": "takes no taps"}
    assert row.share == pytest.approx(row.bytes / 1e12 / 2e-6)
    out, gradients = ran[1]
    assert out.shape == inputs["x_NBH"].shape
    assert [g.shape for g in gradients] == [inputs[name].shape for name in whole.differentiable]

    document = {
        "device": "a card", "torch": "t", "triton": "r", "limits": asdict(LIMITS), "seconds": 7.0,
        "peers": peers_of([jobs[0].operator]), "rows": [asdict(row)],
    }  # fmt: skip
    table = measured_table(document)
    assert "a card" in table
    assert f"| 2.0 | 2.0 | 2.0 | absent -; narrow - | {100 * row.share:.0f} % |" in table
    assert "- absent (no-such-kernels is not installed): the same" in table
    assert f"- narrow (torch {torch.__version__}): half of it" in table
    assert "- grouped_dynamic_conv, narrow: takes no taps" in table


def test_a_budget_cuts_off_what_says_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four measurements of six: our kernels, then the references; what is left out says why."""
    jobs, ran = measured(monkeypatch, budget=4.0)
    assert len(ran) == 4
    for job in jobs:
        assert (job.row.seconds["triton"], job.row.seconds["reference"]) == (2e-6, 2e-6)
        assert job.row.seconds["torch.compile"] is None
        assert job.row.notes["torch.compile"] == "not measured: the budget of 4 s was spent"


def test_public_kernels_are_known_and_nothing_is_imported_for_them() -> None:
    found = peers_of(load_all())
    assert found.keys() == {"FlexAttention", "Liger cross-entropy", "Liger KL", "FlashInfer"}
    assert {peer["package"] for peer in found.values()} == {"torch", "liger-kernel", "flashinfer-python"}
    assert not {"liger_kernel", "flashinfer"} & sys.modules.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nothing_is_measured_without_a_device() -> None:
    with pytest.raises(RuntimeError, match="nothing was measured"):
        measure([])
