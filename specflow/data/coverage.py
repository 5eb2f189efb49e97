"""How much of a text a draft vocabulary can propose, by script: sums of tokens, never averages."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specflow.data.scripts import SPECIAL, scripts_of_tokens
from specflow.data.vocabulary import Supervised


@dataclass(slots=True)
class Coverage:
    """Supervised tokens by group, and how many of them are in the draft vocabulary."""

    tokens: Counter[str] = field(default_factory=Counter)
    covered: Counter[str] = field(default_factory=Counter)
    missing: Counter[int] = field(default_factory=Counter)
    """Tokens that are not in it, by target id."""

    def as_json(self) -> dict[str, dict[str, int]]:
        """``{group: {tokens, covered}}``, the largest group first, and ``all``."""
        groups = sorted(self.tokens, key=lambda g: (-self.tokens[g], g))
        total = {"all": {"tokens": self.tokens.total(), "covered": self.covered.total()}}
        return {g: {"tokens": self.tokens[g], "covered": self.covered[g]} for g in groups} | total


def measure_coverage(
    documents: Iterable[Supervised],
    t2d_V: NDArray[np.bool_],
    *,
    pieces: Sequence[bytes],
    special: Collection[int],
) -> Coverage:
    """Over the supervised tokens of ``documents``. ``pieces``: the bytes of every token."""
    found = Coverage()
    for document in documents:
        for supervised, run in itertools.groupby(zip(document.ids, document.supervised, strict=True), lambda p: p[1]):
            if supervised:
                _add(found, [token for token, _ in run], t2d_V, pieces, special)
    return found


def _add(
    found: Coverage, run: list[int], t2d_V: NDArray[np.bool_], pieces: Sequence[bytes], special: Collection[int]
) -> None:
    groups = scripts_of_tokens([b"" if t in special else pieces[t] for t in run])
    for token, group in zip(run, groups, strict=True):
        name = SPECIAL if token in special else group
        found.tokens[name] += 1
        if t2d_V[token]:
            found.covered[name] += 1
        else:
            found.missing[token] += 1


def coverage_table(train: Coverage, heldout: Coverage) -> str:
    """Lines for the log: tokens and covered share by script, in training and in held-out answers."""
    one, two = train.as_json(), heldout.as_json()
    names = [*(g for g in dict.fromkeys([*one, *two]) if g != "all"), "all"]
    rows = [("script", "train tokens", "covered", "held-out tokens", "covered")]
    rows += [(name, *_cells(one.get(name)), *_cells(two.get(name))) for name in names]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(lines)


def _cells(sums: dict[str, int] | None) -> tuple[str, str]:
    if not sums or not sums["tokens"]:
        return "0", "–"
    return f"{sums['tokens']:,}", f"{100 * sums['covered'] / sums['tokens']:.2f} %"
