"""Sampled answers with the drafter have the distribution of the target's own: tested, per sampling setting.

Every setting draws its own answers, and requests of all settings run side by side in the same batches. Where all
answers can be enumerated, the target's distribution is computed by the chain rule and the counts are compared with it;
otherwise with counts of plain decoding under other seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specflow.decoding.plain import decode_plain
from specflow.decoding.records import Generation, Round
from specflow.decoding.sampling import Sampling
from specflow.decoding.speculative import decode_speculative_batch
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Proposer, Samples
from specflow.scheduling.scheduler import Scheduler
from specflow.serving.verification.check import Check
from specflow.serving.verification.goodness import against_distribution, of_two, row_of, together
from specflow.serving.verification.restricted import Answer, RestrictedTarget, answer_distributions
from specflow.serving.verification.settings import settings_of

ENUMERABLE = 4096
"""Texts before the last token, at most, for the distribution to be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is drawn. Answers have ``length`` tokens, fewer where an end token ends them."""

    samples: int
    length: int
    temperatures: Sequence[float]
    significance: float
    """Chance that a correct drafter fails, all tests together."""
    batch_size: int
    tree: TreeShape | None = None
    scheduler: Scheduler | None = None
    seed: int = 0


def few_of(target: RestrictedTarget) -> int:
    """Tokens that top-k leaves of the alphabet."""
    return max(2, len(target.allowed) // 3)


def check_lossless(
    target: RestrictedTarget,
    proposer: Proposer,
    prompt: Sequence[int],
    plan: Plan,
    *,
    on_answer: Callable[[], None] = lambda: None,
) -> Check:
    """Rejects where a setting's p-value, or that of all together, is below its share of the significance."""
    settings = settings_of(plan.temperatures, top_k=few_of(target), drawn=isinstance(proposer, Samples))
    enumerated = len(target.allowed) ** (plan.length - 1) <= ENUMERABLE
    drawn, generations = _draw(target, proposer, prompt, plan, settings, on_answer=on_answer)
    if enumerated:
        known = answer_distributions(target, prompt, length=plan.length, samplings=settings)
        fits = {name: against_distribution(drawn[name], known[name]) for name in settings}
    else:
        plain, _ = _draw(target, None, prompt, plan, settings, on_answer=on_answer)
        fits = {name: of_two(drawn[name], plain[name]) for name in settings}
    fits["all together"] = together(list(fits.values()))
    level = plan.significance / len(fits)
    rounds = [r for generation in generations for r in generation.rounds]
    rejected = [name for name, fit in fits.items() if not fit.p_value >= level]
    return Check(
        name="lossless",
        what="Sampled answers with the drafter have the distribution of plain decoding",
        passed=not rejected,
        numbers={
            "smallest_p_value": min(fit.p_value for fit in fits.values()),
            "settings": len(settings),
            "samples": sum(fit.samples for name, fit in fits.items() if name != "all together"),
            "against": "the enumerated distribution" if enumerated else "as many answers of plain decoding",
            "tokens_of_an_answer": plan.length,
            "alphabet": len(target.allowed),
            "batch_size": plan.batch_size,
            "rounds": len(rounds),
            "accepted_per_round": sum(r.accepted for r in rounds) / max(len(rounds), 1),
            "tree": None if plan.tree is None else [plan.tree.steps, plan.tree.topk, plan.tree.num_draft_tokens],
            **({} if plan.scheduler is None else _scheduled(plan.scheduler, rounds)),
            "tests": [row_of(name, fit, level) for name, fit in fits.items()],
        },
        limit=f"p-values of at least {level:.2g} ({plan.significance:g} over {len(fits)} tests)",
        failures=[f"{name}: p-value {fits[name].p_value:.2g}" for name in rejected[:5]],
    )


def _scheduled(scheduler: Scheduler, rounds: Sequence[Round]) -> dict[str, Any]:
    """The mode, and whether it did anything that could have been wrong."""
    return {
        "scheduler": scheduler.params.mode,
        "rounds_cut": sum(0 < r.proposed > r.judged for r in rounds),
        "rounds_without_drafting": sum(r.proposed == 0 for r in rounds),
    }


def _draw(
    target: RestrictedTarget,
    proposer: Proposer | None,
    prompt: Sequence[int],
    plan: Plan,
    settings: Mapping[str, Sampling],
    *,
    on_answer: Callable[[], None],
) -> tuple[dict[str, Counter[Answer]], list[Generation]]:
    """Answers of every setting; none for the proposer: by plain decoding."""
    # Both modes give some decisions the same numbers: equal seeds would make the two samples depend on each other.
    offset = 2 * plan.seed + (proposer is None)
    asked = [
        (name, replace(sampling, seed=(offset * plan.samples + n) * len(settings) + i))
        for n in range(plan.samples)
        for i, (name, sampling) in enumerate(settings.items())
    ]
    decoder: Any = target  # the part of a target that decoding uses
    options: dict[str, Any] = {
        "max_new_tokens": plan.length,
        "sampling": [sampling for _, sampling in asked],
        "batch_size": plan.batch_size,
        "on_done": lambda index, generation: on_answer(),
    }
    prompts = [list(prompt)] * len(asked)
    if proposer is None:
        found = decode_plain(decoder, prompts, **options)
    else:
        found = decode_speculative_batch(
            decoder, proposer, prompts, tree=plan.tree, scheduler=plan.scheduler, **options
        )
    counts: dict[str, Counter[Answer]] = {name: Counter() for name in settings}
    for (name, _), generation in zip(asked, found, strict=True):
        counts[name][tuple(generation.tokens)] += 1
    return counts, found
