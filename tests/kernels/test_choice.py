"""Which implementation is chosen, for tensors that only claim to be on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specflow_kernels.catalogue import NAMES, load
from specflow_kernels.choice import Choice, choose
from specflow_kernels.operator import Operator
from torch._subclasses.fake_tensor import FakeTensorMode

DTYPES = (torch.half, torch.float, torch.double)


def explained(operator: Operator, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> list[Choice]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    with FakeTensorMode():
        return [operator.explain(**case.make(torch.device("cuda", 0))) for case in operator.cases]


@pytest.mark.parametrize("name", NAMES)
def test_every_case_runs_its_kernel_on_a_device_that_can(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(load(name), monkeypatch, (9, 0))
    assert all(choice.kernel and choice.reason.endswith("on sm_90") for choice in found), found
    assert {choice.name for choice in found} == {"triton"}
    old = explained(load(name), monkeypatch, (7, 5))
    assert {choice.reason for choice in old} == {"the device is sm_75; the kernel needs sm_80 or newer"}


def test_reasons_against_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with FakeTensorMode():
        half, whole, double = (
            torch.empty(2, dtype=t, device="cuda:0") for t in (torch.half, torch.float, torch.double)
        )
        cpu = torch.empty(2)

        def reason(*tensors: Any, **rest: Any) -> str:
            choice = choose(tensors, **rest)
            assert choice.name == "reference"
            return choice.reason

        assert reason(cpu) == "tensors are on cpu; the kernel needs a CUDA device"
        assert reason(half, cpu) == "tensors are on several devices: ['cpu', 'cuda:0']"
        assert reason(double) == "dtype float64; the kernel takes bfloat16, float16, float32"
        assert reason(half, whole) == "dtypes differ: float16, float32; the kernel needs one"
        assert reason(half, refusals=((False, "no"), (True, "too large"))) == "too large"
        assert choose((half, torch.empty(2, dtype=torch.int64, device="cuda:0"))).kernel


def test_operators_give_their_own_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    from specflow_kernels.anchored_block_attention import explain
    from specflow_kernels.anchored_block_attention.operator import make

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    sizes: dict[str, Any] = {"documents": 1, "tokens": 4, "anchors": 1, "heads": 2, "groups": 1}
    with FakeTensorMode():
        wide = make(torch.device("cuda", 0), block=4, size=512, **sizes)
        long = make(torch.device("cuda", 0), block=65, size=64, **sizes)
        assert explain(**wide).reason == "head size 512; the kernel's tiles hold up to 256"
        assert explain(**long).reason == "blocks of 65 rows; the kernel's tiles hold up to 64"
