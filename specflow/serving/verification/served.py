"""Claims about a running server: it runs as the manifest asks, and accepts what the embedded engine accepts.

A server with a broken draft answers correctly, because the target decides every token; only the counts tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from specflow.serving.consequences import consequence
from specflow.serving.draft import Finding
from specflow.serving.requests import Request
from specflow.serving.settings import Setting, differing
from specflow.serving.verification.answers import Answers
from specflow.serving.verification.check import Check

SHOWN = 5


def check_settings(settings: list[Setting], *, other_model: Sequence[str]) -> Check:
    """``other_model``: why the model that is served is not the target."""
    wrong = [str(s) for s in differing(settings)] + list(other_model)
    return Check(
        name="settings",
        what="The server runs with the manifest's settings and with the target",
        passed=not wrong,
        numbers={s.name: s.found for s in settings},
        limit="no difference",
        failures=wrong,
    )


def check_counts(
    requests: Sequence[Request],
    *,
    served: Answers,
    embedded: Answers,
    precision: str,
    gap: float,
    findings: Sequence[Finding] = (),
) -> Check:
    """Rounds by accepted proposals are the embedded engine's: of every prompt in fp32, else by position within ``gap``.

    ``gap``: of the share of rounds that accept a position, over all prompts. ``findings``: of the linter.
    """
    totals = [_total(answers, len(requests)) for answers in (served, embedded)]
    shares = [_shares(total) for total in totals]
    largest = max((abs(a - b) for a, b in zip_longest(*shares, fillvalue=0.0)), default=0.0)
    differing_prompts = [
        f"prompt {r.id} ({r.kind}): rounds by accepted proposals {list(served.answer(i).accepted)} served, "
        f"{list(embedded.answer(i).accepted)} embedded"
        for i, r in enumerate(requests)
        if served.answer(i).accepted != embedded.answer(i).accepted
    ]
    exact = precision == "fp32"
    passed = not differing_prompts if exact else largest <= gap
    return Check(
        name="acceptance-by-position",
        what="The server accepts at every position what the embedded engine accepts on the same prompts",
        passed=bool(requests) and passed,
        numbers={
            "prompts": len(requests),
            "served": totals[0],
            "embedded": totals[1],
            "differing_prompts": len(differing_prompts),
            "largest_gap": largest,
        },
        limit="equal counts for every prompt" if exact else f"shares of rounds by position within {gap}",
        failures=[] if passed else [*differing_prompts[:SHOWN], *_linted(findings)],
    )


def check_working(
    requests: Sequence[Request],
    *,
    served: Answers,
    embedded: Answers,
    least: float,
    findings: Sequence[Finding],
    warnings: Sequence[str],
) -> Check:
    """The drafter works at all: more than ``least`` tokens a round, the server's own included.

    ``findings``: of the linter; ``warnings``: lines of the server's log. They are named as causes if it does not.
    """
    lengths = [accept_length(_total(answers, len(requests))) for answers in (served, embedded)]
    length, own = lengths
    passed = length is not None and length >= least
    return Check(
        name="working",
        what="The server's rounds accept proposals",
        passed=passed,
        numbers={"accept_length": length, "embedded_accept_length": own},
        limit=f"at least {least} tokens a round",
        failures=[] if passed else _causes(length, own, least, findings, warnings),
    )


def accept_length(accepted: Sequence[int]) -> float | None:
    """Proposals accepted per round and the target's own token, before any cut; none where no round ran."""
    rounds = sum(accepted)
    return 1 + sum(r * n for r, n in enumerate(accepted)) / rounds if rounds else None


def _causes(
    length: float | None,
    own: float | None,
    least: float,
    findings: Sequence[Finding],
    warnings: Sequence[str],
) -> list[str]:
    """Likely causes, the surest first."""
    found = _linted(findings)
    if length is None:
        found.append("the server counts no rounds: it does not speculate, or every answer is one token long")
    if own is None or own < least:
        found.append(
            f"the embedded engine accepts as little ({own and round(own, 3)} tokens a round): the drafter is not "
            "trained enough, or not for prompts like these; serving is not at fault"
        )
    elif not found:
        found.append(
            "the linter finds nothing and the embedded engine accepts proposals: the server loaded other weights than "
            "these, or computes them otherwise; compare its version and the lines of its log below"
        )
    return [*found, *(f"its log: {line}" for line in warnings)]


def _linted(findings: Sequence[Finding]) -> list[str]:
    return [f"the linter found {finding}; {consequence(finding.check)}" for finding in findings]


def _total(answers: Answers, count: int) -> list[int]:
    rows = (answers.answer(i).accepted for i in range(count))
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _shares(total: Sequence[int]) -> list[float]:
    """Share of rounds that accept at least 1, 2, .. proposals."""
    rounds: int = sum(total)
    return [sum(total[j:]) / rounds for j in range(1, len(total))]


def as_metrics(checks: Sequence[Check]) -> dict[str, Any]:
    return {check.name: dict(check.numbers) for check in checks}
