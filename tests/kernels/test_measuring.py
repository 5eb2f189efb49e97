"""Rows of the measurements and their table, with a clock that is not a GPU's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from specflow_kernels import measuring
from specflow_kernels.catalogue import load
from specflow_kernels.measuring import Limits, measure
from specflow_kernels.tables import measured_table


def test_row_has_a_time_for_what_ran_and_a_note_for_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def seconds(function: Callable[[], Any]) -> float:
        ran.append(function())
        return 2e-6

    def missing(_: dict[str, Any]) -> Callable[..., Any]:
        raise ImportError("it is not installed")

    monkeypatch.setattr(measuring, "_seconds", seconds)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    whole = load("grouped_dynamic_conv")
    operator = replace(whole, kernel=whole.reference, peers={"peer": missing})
    limits = Limits(bytes_per_second=1e12, operations_per_second=1e15)
    row = measuring._row(operator, operator.cases[0], True, limits, torch.device("cpu"))
    inputs = operator.cases[0].make(torch.device("cpu"))
    assert row.bytes == whole.cost(**inputs).bytes + whole.backward_cost(**inputs).bytes  # type: ignore[misc]
    assert row.seconds == {"triton": 2e-6, "reference": 2e-6, "torch.compile": 2e-6, "peer": None}
    assert row.notes == {"peer": "it is not installed"}
    assert row.share == pytest.approx(row.bytes / 1e12 / 2e-6)
    out, gradients = ran[0]
    assert out.shape == inputs["x_NBH"].shape
    assert [g.shape for g in gradients] == [inputs[name].shape for name in operator.differentiable]

    assert row.share is not None
    document = {"device": "a card", "torch": "t", "triton": "r", "limits": asdict(limits), "rows": [asdict(row)]}
    table = measured_table(document)
    assert "a card" in table
    assert f"| 2.0 | 2.0 | 2.0 | - | {100 * row.share:.0f} % |" in table
    assert "grouped_dynamic_conv, peer: it is not installed" in table


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nothing_is_measured_without_a_device() -> None:
    with pytest.raises(RuntimeError, match="nothing was measured"):
        measure([])
