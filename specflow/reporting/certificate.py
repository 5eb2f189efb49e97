"""What the certificate of lossless sampling tested, as tables of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.reporting import text

TESTS = "tests"
"""Of a check's numbers, the one that is a table."""


def short(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that fit into a line."""
    return {name: value for name, value in numbers.items() if name != TESTS}


def distributions(verification: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of every check that tested a distribution: title, note and table."""
    return [_table(check) for check in verification.get("checks", []) if check["numbers"].get(TESTS)]


def _table(check: Mapping[str, Any]) -> dict[str, Any]:
    numbers = check["numbers"]
    tree = numbers["tree"]
    shape = "chains" if tree is None else "trees of {} steps, topk {}, {} rows".format(*tree)
    if numbers.get("scheduler"):
        shape += f" and scheduler {numbers['scheduler']}, {text.count(numbers['rounds_cut'])} rounds cut"
    accepted, power = text.number(numbers["accepted_per_round"]), numbers[TESTS][0]["power"]
    title, drawn, unit = _what(numbers)
    return {
        "title": title,
        "note": f"{drawn}, with {shape}, all settings mixed in batches of {numbers['batch_size']}; {accepted} "
        f"proposals accepted per round. Compared with {numbers['against']} by G-tests; needed: {check['limit']}. "
        f"Detectable: a total variation that is rejected with probability {power:g} at least.",
        "head": ["setting", unit, "cells", "G", "p-value", "total variation", "detectable"],
        "rows": [
            [
                row["setting"], text.count(row["samples"]), text.count(row["cells"]), text.number(row["g"], 1),
                f"{row['p_value']:.3g}", text.number(row["total_variation"], 3), text.number(row["detectable"], 3),
            ]
            for row in numbers[TESTS]
        ],
    }  # fmt: skip


def _what(numbers: Mapping[str, Any]) -> tuple[str, str, str]:
    """Title, what was drawn, and what is counted."""
    if "classes" in numbers:
        drawn = (
            f"{text.count(numbers['continuations'])} continuations of {numbers['prompts']} prompts by up to "
            f"{numbers['tokens_of_an_answer']} tokens, all tokens allowed, in {numbers['classes']} classes of equal "
            f"probability; {text.count(numbers['positions'])} positions"
        )
        return "Distribution of sampled continuations", drawn, "positions"
    drawn = f"Answers of {numbers['tokens_of_an_answer']} tokens, from an alphabet of {numbers['alphabet']}"
    return "Distribution of sampled answers", drawn, "answers"
