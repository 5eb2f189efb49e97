"""``gate``: whether the quickest new drafter takes the place of the promoted one. The runner enters the decision into
the registry of drafters; this stage only makes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.gate import PROMOTED, GateParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.reporting.decision import Candidate, Certificate

NAME = "gate"
KIND = "decision"
INPUTS: Mapping[str, Arity] = {
    "comparison": Arity.ONE,
    "drafter": Arity.MANY,
    "export": Arity.MANY,
    "verification": Arity.MANY,
}
DECISION_FILE = "decision.json"


def check(params: GateParams) -> Iterable[Problem]:
    return ()


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    """Told before anything is trained: without a certificate nothing would be promoted."""
    own, verify, compare = sections.get(NAME), sections.get("verify"), sections.get("compare")
    if own and verify and own.certificate and not verify.lossless.enabled:
        yield Problem(
            where="verify.lossless.enabled",
            found="false",
            expected="true, as gate.certificate asks for it",
            hint="--set verify.lossless.enabled=true, or gate.certificate=false to promote without it",
        )
    if own and compare and own.concurrency and own.concurrency not in compare.concurrency:
        yield Problem(
            where="gate.concurrency",
            found=str(own.concurrency),
            expected=f"one of compare.concurrency: {', '.join(map(str, compare.concurrency))}",
        )


def files(params: GateParams) -> Iterable[Path]:
    return ()


def estimate(params: GateParams) -> Estimate:
    return Estimate(bytes=20_000, seconds=1.0)


def run(inputs: Inputs, params: GateParams, context: Context) -> Metrics:
    """Payload: ``decision.json``; logs the decision and its reason.

    Raises ``StageError`` where the comparison does not have what the rule asks for.
    """
    from specflow.reporting.decision import Rule, decide

    comparison = json.loads(inputs.one("comparison").file("comparison.json").read_text(encoding="utf-8"))
    last = max(row["concurrency"] for row in comparison["rows"])
    rule = Rule(
        margin=params.margin,
        confidence=params.confidence,
        concurrency=params.concurrency or last,
        min_waves=params.min_waves,
        certificate=params.certificate,
    )
    drafters = inputs.all("drafter")
    incumbent = next((drafter for drafter in drafters if drafter.item == PROMOTED), None)
    given = (PROMOTED, Path(incumbent.parameters["drafter"]).name) if incumbent else None
    candidates = [_candidate(drafter, inputs) for drafter in drafters if drafter.item != PROMOTED]
    try:
        found = decide(comparison, candidates, rule, incumbent=given)
    except ValueError as error:
        raise StageError(f"gate: {error}") from error
    record = {"format": 1, "service": params.service, "rule": asdict(rule), **found.as_json()}
    (context.output / DECISION_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    context.log(f"{'promote' if found.promote else 'keep'}: {found.reason}")
    return {
        "promote": found.promote,
        "best": found.best.name,
        "reason": found.reason,
        "tokens_per_second": found.best.tokens_per_second,
        "baseline_tokens_per_second": found.baseline.tokens_per_second,
        "tau": found.best.tau,
    }


def _candidate(drafter: Artifact, inputs: Inputs) -> Candidate:
    from specflow.reporting.decision import Candidate

    def of(kind: str) -> Artifact:
        """The one artifact of the kind that was made from this drafter."""
        made = [artifact for artifact in inputs.all(kind) if artifact.inputs.get("drafter") == drafter.key]
        if len(made) != 1:
            raise StageError(f"gate: expected one {kind} of drafter {drafter.key[:12]}, found {len(made)}")
        return made[0]

    return Candidate(
        name=drafter.item or drafter.key[:12],
        drafter=drafter.key,
        export=of("export").key,
        certificate=_certificate(of("verification")),
    )


def _certificate(verification: Artifact) -> Certificate:
    record = json.loads(verification.file("verification.json").read_text(encoding="utf-8"))
    check = next((check for check in record["checks"] if check["name"] == "lossless"), None)
    if check is None:
        return "absent"
    return "passed" if record["passed"] and check["passed"] else "failed"
