"""Two decodings of one prompt: where they first differ, and whether that place is a near tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Protocol

import torch

from specflow.serving.requests import Request
from specflow.serving.verification.check import Check

SHOWN = 5
NEAR_TIE = {"fp32": 0.0, "packed": 1e-4, "bf16": 2.0**-6}
"""Gap, relative to the largest logit, under which a precision may choose either of two tokens.

fp32 may not. Packed weights hold the checkpoint's values exactly and are multiplied in fp32, but kernels for one and
for more rows add in different orders; bf16 keeps 8 bits of every activation.
"""


class Outputs(Protocol):
    """Tokens by request index."""

    def __getitem__(self, index: int) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference of one prompt."""

    id: str
    kind: str
    position: int
    """Index into the generated tokens."""
    plain: int | None
    speculative: int | None
    """None where that output had already ended."""
    gap: float
    """fp32 logit of the best token less that of the worse of the two; infinite where one had ended early."""
    largest_logit: float
    """Largest magnitude of an fp32 logit at that place."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "gap": self.gap if self.gap != inf else None}


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """Index of the first differing token; the shorter length where one is a proper prefix; none if equal."""
    for index, (a, b) in enumerate(zip(plain, speculative, strict=False)):
        if a != b:
            return index
    return None if len(plain) == len(speculative) else min(len(plain), len(speculative))


def near_tie_limit(precision: str, near_tie: float | None, *, largest_logit: float) -> float:
    """Largest gap in logits that is a tie in ``precision`` (resolved, not ``auto``); ``near_tie`` overrides the rule.

    Always 0 in fp32.
    """
    if precision == "fp32":
        return 0.0
    return NEAR_TIE[precision] * largest_logit if near_tie is None else near_tie


def near_tie_gap(
    target: Any, prompt: Sequence[int], agreed: Sequence[int], *, tokens: Sequence[int]
) -> tuple[float, float]:
    """How far the worst of ``tokens`` is below the best logit after ``prompt + agreed``, and the largest magnitude.

    ``target`` in fp32.
    """
    ids = torch.tensor([[*prompt, *agreed]])
    output = target.forward(ids, target.new_cache(1, ids.shape[1]))
    logits_V = target.head(output.last_hidden_BTH[0, -1:])[0].float()
    return float(logits_V.max() - logits_V[list(tokens)].min()), float(logits_V.abs().max())


def difference(
    target: Any, *, id: str, kind: str, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int]
) -> Difference | None:
    """The first difference with its gap, recomputed by ``target`` in fp32; none if the outputs are equal."""
    index = first_difference(plain, speculative)
    if index is None:
        return None
    pair = [side[index] if index < len(side) else None for side in (plain, speculative)]
    tokens = [t for t in pair if t is not None]
    gap, largest = near_tie_gap(target, prompt, plain[:index], tokens=tokens) if len(tokens) == 2 else (inf, 0.0)
    return Difference(
        id=id, kind=kind, position=index, plain=pair[0], speculative=pair[1], gap=gap, largest_logit=largest
    )


def check_equality(
    requests: Sequence[Request],
    *,
    plain: Outputs,
    speculative: Outputs,
    exact: Any,
    near_tie: float | None,
    precision: str,
    name: str = "greedy",
    what: str = "Greedy output with the drafter equals plain decoding, token for token",
) -> Check:
    """Greedy outputs are equal token for token; in precisions that round, a difference must be a near tie.

    ``exact``: the target in fp32, which recomputes the logits at each first difference. ``near_tie``: see
    ``near_tie_limit``.
    """
    found = [
        difference(exact, id=r.id, kind=r.kind, prompt=r.prompt, plain=plain[i], speculative=speculative[i])
        for i, r in enumerate(requests)
    ]
    differing = [d for d in found if d is not None]

    def tied(d: Difference) -> bool:
        limit = near_tie_limit(precision, near_tie, largest_logit=d.largest_logit)
        return precision != "fp32" and d.gap <= limit

    bad = [d for d in differing if not tied(d)]
    return Check(
        name=name,
        what=what,
        passed=bool(requests) and not bad,
        numbers={
            "prompts": len(requests),
            "tokens": sum(len(plain[i]) for i in range(len(requests))),
            "differing_prompts": len(differing),
            "near_ties": len(differing) - len(bad),
            "largest_gap": max((d.gap for d in differing if d.gap != inf), default=0.0),
            "precision": precision,
            "differences": [d.as_json() for d in differing],
        },
        limit=_rule(precision, near_tie),
        failures=[
            f"prompt {d.id} ({d.kind}), token {d.position}: plain {d.plain}, speculative {d.speculative}, "
            f"fp32 logit gap {d.gap:.4g}"
            for d in bad[:SHOWN]
        ],
    )


def _rule(precision: str, near_tie: float | None) -> str:
    if precision == "fp32":
        return "no difference"
    limit = f"{NEAR_TIE[precision]:.2g} of the largest logit" if near_tie is None else f"{near_tie} logits"
    return f"the fp32 gap at each first difference within {limit}"
