"""What the compiler and the measurements found, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specflow_kernels.compiling import CAPABILITIES, SHARED_LIMIT, Compiled

BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
OWN = ("triton", "reference", "torch.compile")
"""Implementations that every operator has, by the names of ``measuring.ROUNDS``."""


def compiled_table(results: Sequence[tuple[str, Compiled]], *, digest: str, triton: str) -> str:
    """One line per operator, kernel and case; ``results``: operator names and what was compiled."""
    names = [f"sm_{c}" for c in CAPABILITIES]
    lines = [
        f"Triton {triton}, sources `{digest}`. Each cell: registers per thread, shared memory per program in kB, bytes "
        "per thread that did not fit in registers, tensor-core instructions.",
        "",
        f"| operator | kernel | shapes | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    grouped: dict[tuple[str, str, str, int], dict[int, Compiled]] = {}
    seen: dict[tuple[str, str, str, int], int] = {}
    for operator, made in results:
        key = (operator, made.kernel, made.case, made.capability)
        variant = seen[key] = seen.get(key, -1) + 1  # the same kernel specialised twice for one case
        grouped.setdefault((operator, made.kernel, made.case, variant), {})[made.capability] = made
    for (operator, kernel, case, _), by_capability in grouped.items():
        cells = " | ".join(_cell(by_capability.get(c)) for c in CAPABILITIES)
        lines.append(f"| {operator} | {kernel.removesuffix('_kernel')} | {case} | {cells} |")
    limits = ", ".join(f"sm_{c} {SHARED_LIMIT[c] // 1024} kB" for c in CAPABILITIES)
    lines += ["", f"Limits: 255 registers per thread; shared memory per program {limits}."]
    return "\n".join(lines)


def _cell(made: Compiled | None) -> str:
    if made is None:
        return "-"
    return f"{made.registers}, {made.shared / 1024:.1f}, {made.stack}, {made.instructions}"


def measured_table(document: dict[str, Any]) -> str:
    """The rows of ``measuring.measure``; public kernels share a column, and say below it what they compute."""
    limits = document["limits"]
    lines = [
        f"{document['device']}, torch {document['torch']}, Triton {document['triton']}; measured "
        f"limits {limits['bytes_per_second'] / 1e12:.2f} TB/s and {limits['operations_per_second'] / 1e12:.0f} Tflop/s "
        f"in bf16. Times in microseconds; all of it took {document['seconds']:.0f} s.",
        "",
        f"| operator | shapes | direction | {' | '.join(OWN)} | public kernel | share of the limit |",
        f"|---|---|---|{'---:|' * len(OWN)}---|---:|",
    ]
    for row in document["rows"]:
        times = " | ".join(_time(row["seconds"].get(name)) for name in OWN)
        public = {name: seconds for name, seconds in row["seconds"].items() if name not in OWN}
        told = "; ".join(f"{name} {_time(seconds)}" for name, seconds in public.items()) or "-"
        share = "-" if row["share"] is None else f"{100 * row['share']:.0f} %"
        lines.append(f"| {row['operator']} | {row['case']} | {row['direction']} | {times} | {told} | {share} |")
    lines += ["", *(_described(name, peer) for name, peer in document["peers"].items())]
    notes = {f"{row['operator']}, {name}: {note}" for row in document["rows"] for name, note in row["notes"].items()}
    return "\n".join([*lines, *(["", *sorted(f"- {note}" for note in notes)] if notes else [])])


def _described(name: str, peer: dict[str, str | None]) -> str:
    return f"- {name} ({peer['package']} {peer['version'] or 'is not installed'}): {peer['computes']}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def put_between(text: str, table: str, *, begin: str = BEGIN, end: str = END) -> str:
    """``text`` with what lies between the two marks replaced. Raises ``ValueError`` without them."""
    if begin not in text or end not in text:
        raise ValueError(f"expected the marks {begin} and {end} around the table, found neither or one")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"


def problems_of(results: Iterable[tuple[str, Compiled]]) -> list[str]:
    return [f"{operator}: {problem}" for operator, made in results for problem in made.problems]
