"""Kernels compile ahead of time without a GPU, and the table in the docs is that of the present sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from specflow_kernels.catalogue import NAMES, load
from specflow_kernels.compiling import CAPABILITIES, Compiled, compile_launch, launches_of, sources_digest
from specflow_kernels.cost import Cost
from specflow_kernels.launching import capability_of
from specflow_kernels.operator import without_memory
from specflow_kernels.tables import compiled_table, put_between

DOCUMENT = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_the_first_case_compile_and_spill_nothing(name: str) -> None:
    operator = load(name)
    case = operator.cases[0]
    launches = launches_of(operator, case, capability=90)
    assert launches
    for launch in launches:
        made = compile_launch(launch, case=case.name, capability=90)
        assert made.problems == []
        assert 0 < made.registers <= 255


def test_table_in_the_docs_is_of_these_sources_and_names_every_case() -> None:
    text = DOCUMENT.read_text()
    found = re.search(r"sources `([0-9a-f]+)`", text)
    assert found is not None
    assert found[1] == sources_digest(), "run: specflow kernels compile --document docs/kernels.md"
    for name in NAMES:
        operator = load(name)
        for case in operator.cases:
            for capability in CAPABILITIES:
                for launch in launches_of(operator, case, capability=capability):
                    row = f"| {name} | {launch.kernel.__name__.removesuffix('_kernel')} | {case.name} |"
                    assert row in text, row
    cells = re.findall(r"(\d+), ([\d.]+), (\d+), [-a-z0-9., ]+ (?=\|)", text)
    assert cells
    assert {stack for _, _, stack in cells} == {"0"}


def test_problems_are_told() -> None:
    made = Compiled(
        kernel="k", case="c", capability=80, registers=255, shared=200_000, stack=8, warps=4, instructions="-"
    )
    assert ["spills 8 bytes" in made.problems[0], "needs 200000 bytes" in made.problems[1]] == [True, True]


def test_table_has_a_line_for_each_specialisation() -> None:
    made = [
        Compiled(
            kernel="k_kernel", case="c", capability=c, registers=r, shared=2048, stack=0, warps=4, instructions="-"
        )
        for c in CAPABILITIES
        for r in (10, 20)
    ]
    lines = compiled_table([("op", m) for m in made], digest="d", triton="t").split("\n")
    assert [line for line in lines if line.startswith("| op |")] == [
        "| op | k | c | 10, 2.0, 0, - | 10, 2.0, 0, - | 10, 2.0, 0, - |",
        "| op | k | c | 20, 2.0, 0, - | 20, 2.0, 0, - | 20, 2.0, 0, - |",
    ]
    assert put_between("a <!-- kernels: begin -->old<!-- kernels: end --> b", "T") == (
        "a <!-- kernels: begin -->\nT\n<!-- kernels: end --> b"
    )
    with pytest.raises(ValueError, match="expected the marks"):
        put_between("nothing", "T")


def test_share_of_the_limit() -> None:
    cost = Cost(bytes=100, operations=400)
    assert cost.share(2.0, bytes_per_second=100.0, operations_per_second=1000.0) == 0.5
    assert cost.share(2.0, bytes_per_second=1000.0, operations_per_second=400.0) == 0.5
    assert cost.intensity == 4.0


def test_cost_of_attention_counts_the_visible_pairs() -> None:
    operator = load("anchored_block_attention")
    # 512 blocks of 15 query rows and 32 heads; block i of 256 in a document of 2048 rows sees 8 * (i + 1) of them.
    seen = 2 * sum(8 * (i + 1) for i in range(256)) + 512 * 16
    assert operator.cost(**without_memory(operator.cases[1])).operations == 4 * 15 * 32 * 128 * seen
    windowed = 2 * sum(min(512, 8 * (i + 1)) for i in range(256)) + 512 * 16
    assert operator.cost(**without_memory(operator.cases[2])).operations == 4 * 15 * 32 * 128 * windowed
    ttt = load("ttt_attention")
    pairs = 2 * (2048 * 2049 // 2) + 4096 * 6
    assert ttt.cost(**without_memory(ttt.cases[1])).operations == 4 * 32 * 128 * pairs


def test_cost_and_choice_of_every_case_are_told_without_a_device() -> None:
    for name in NAMES:
        operator = load(name)
        for case in operator.cases:
            inputs = case.make(torch.device("meta"))
            cost = operator.cost(**without_memory(case))
            assert cost.bytes > 0
            if operator.backward_cost is not None:
                assert operator.backward_cost(**without_memory(case)).operations > cost.operations
            choice = operator.explain(**inputs)
            assert (choice.kernel, choice.reason) == (False, "tensors are on meta; the kernel needs a CUDA device")
    assert capability_of(torch.zeros(1)) == 90
