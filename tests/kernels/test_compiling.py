"""Kernels compile ahead of time without a GPU, and the table in the docs is that of the present sources."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from specflow_kernels.catalogue import NAMES, load
from specflow_kernels.compiling import CAPABILITIES, Compiled, compile_launch, launches_of, sources_digest
from specflow_kernels.cost import Cost
from specflow_kernels.launching import Launch, capability_of
from specflow_kernels.operator import without_memory
from specflow_kernels.tables import compiled_table, put_between

DOCUMENT = Path(__file__).parents[2] / "docs" / "kernels.md"


WORST = (
    ("anchored_block_attention", "8B, blocks of 16", "forward_kernel", 80),
    ("anchored_block_attention", "8B, sliding window, float32", "block_kernel", 90),
    ("anchored_block_attention", "8B, sliding window, float32", "context_kernel", 90),
    ("linear_distillation_loss", "SmolLM2-135M, quickstart", "statistics_kernel", 90),
    ("ttt_attention", "SmolLM2-135M, depth 2", "query_kernel", 80),
    ("ttt_attention", "8B, depth 6, float32", "key_kernel", 100),
)
"""Those of the table that need the most registers, and those that spilled before their number was raised."""
LIGHT = sorted(set(NAMES) - {name for name, *_ in WORST})


@pytest.mark.parametrize(("name", "shapes", "kernel", "capability"), WORST)
def test_the_worst_kernels_spill_nothing(name: str, shapes: str, kernel: str, capability: int) -> None:
    operator = load(name)
    case = next(variant for variant in operator.variants if variant.name == shapes)
    launch = next(found for found in launches_of(operator, case, capability=capability) if name_of(found) == kernel)
    made = compile_launch(launch, case=shapes, capability=capability)
    assert made.problems == []
    assert 64 < made.registers <= 255


@pytest.mark.parametrize("name", LIGHT)
def test_kernels_of_the_first_case_compile_and_spill_nothing(name: str) -> None:
    operator = load(name)
    case = operator.cases[0]
    launches = launches_of(operator, case, capability=90)
    assert launches
    for launch in launches:
        made = compile_launch(launch, case=case.name, capability=90)
        assert made.problems == []
        assert 0 < made.registers <= 255


def name_of(launch: Launch) -> str:
    name: str = launch.kernel.__name__
    return name


def test_a_limit_of_registers_reaches_the_assembler() -> None:
    """Too few of them spill: the numbers that the table holds are read from the code, not assumed."""
    operator = load("grouped_dynamic_conv")
    launch = launches_of(operator, operator.cases[0], capability=90)[-1]
    free = compile_launch(launch, case="c", capability=90)
    tight = compile_launch(replace(launch, registers=32), case="c", capability=90)
    assert free.registers > 32 >= tight.registers
    assert (free.stack, tight.stack > 0) == (0, True)
    assert "spills" in tight.problems[0]


def test_variants_are_the_cases_in_fp32_too() -> None:
    operator = load("markov_walk")
    assert [case.name for case in operator.variants] == [
        "SmolLM2-135M", "SmolLM2-135M, float32", "8B", "8B, float32",
    ]  # fmt: skip
    wide = list(operator.variants)[1].make(torch.device("meta"))
    assert {t.dtype for t in wide.values() if t.is_floating_point()} == {torch.float32}
    for name in ("quantize_features", "accept_greedy"):  # one takes bfloat16 alone, the other has none of it
        assert list(load(name).variants) == list(load(name).cases)


def test_table_in_the_docs_is_of_these_sources_and_names_every_case() -> None:
    text = DOCUMENT.read_text()
    found = re.search(r"sources `([0-9a-f]+)`", text)
    assert found is not None
    assert found[1] == sources_digest(), "run: specflow kernels compile --document docs/kernels.md"
    for name in NAMES:
        operator = load(name)
        for case in operator.variants:
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
