"""Sampled continuations with all tokens allowed: every token has the target's distribution after the text before it.

The text is run again in one clean pass, so a fault of the cache, of the drafter's state, of a filter or of a penalty
shows as a fault of verification does. The vocabulary is folded into a few classes (``classes.py``), and the counts of
all positions are compared with equal ones, per setting and pooled. Plain decoding is put to the same test: where it
fails too, the fault is not the drafter's. Legend: T positions of an answer, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from specflow.decoding.plain import decode_plain
from specflow.decoding.records import Generation
from specflow.decoding.sampling import Sampling
from specflow.decoding.speculative import decode_speculative_batch
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Proposer, Samples
from specflow.serving.verification.check import Check
from specflow.serving.verification.classes import Order, Placed, Places
from specflow.serving.verification.goodness import Fit, against_distribution, row_of
from specflow.serving.verification.journal import Journal
from specflow.serving.verification.restricted import hidden_behind
from specflow.serving.verification.settings import settings_of

TOP_K = 20
TOGETHER = 16
"""Answers run together behind their prompt, to be judged."""
SLACK = {"fp32": 1e-4, "packed": 1e-2, "bf16": 0.1}
"""Relative error of a probability that another batch may bring; see ``equality.NEAR_TIE``."""
IMPOSSIBLE = "a token that the target cannot say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is drawn: ``count`` continuations of each prompt with each setting. None is longer than ``length``."""

    prompts: Sequence[Sequence[int]]
    count: int
    length: int
    temperatures: Sequence[float]
    classes: int
    significance: float
    """Chance that a correct drafter fails, all tests together."""
    batch_size: int
    tree: TreeShape | None = None
    seed: int = 0

    def settings(self, proposer: Proposer) -> dict[str, Sampling]:
        return settings_of(self.temperatures, top_k=TOP_K, drawn=isinstance(proposer, Samples))

    def answers(self, proposer: Proposer) -> int:
        """With the drafter, and as many without."""
        return len(self.settings(proposer)) * len(self.prompts) * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One continuation."""

    setting: str
    prompt: Sequence[int]
    sampling: Sampling


@dataclass(slots=True)
class _Counts:
    """Of the positions that fell into each class."""

    by_class: dict[Order, Counter[Any]] = field(default_factory=lambda: {order: Counter() for order in Order})
    neighbours: Counter[Any] = field(default_factory=Counter)
    """Classes of two positions in a row; no position is in two of these pairs."""
    borderline: int = 0

    def add(self, placed: Sequence[Placed], classes: int, spare: float) -> None:
        """``spare``: a point that stands for the one behind an answer which ends within a pair."""
        for order in Order:
            self.by_class[order].update(_class(p, order, classes) for p in placed)
        self.borderline += sum(p.borderline for p in placed)
        # Without the spare, tokens that end an answer would be missing from the first places of pairs.
        points = [_class(p, Order.LIKELY, classes) for p in placed] + [int(spare * classes)]
        self.neighbours.update(pair for pair in list(pairwise(points))[::2] if IMPOSSIBLE not in pair)


def check_continuations(
    target: Any,
    proposer: Proposer,
    plan: Plan,
    *,
    speculative: Journal,
    plain: Journal,
    on_answer: Callable[[], None] = lambda: None,
) -> Check:
    """Rejects where a p-value is below its share of the significance. Journals hold the answers drawn so far."""
    settings = plan.settings(proposer)
    asked = [
        _Asked(
            setting=name,
            prompt=prompt,
            sampling=replace(sampling, seed=((plan.seed * plan.count + n) * len(plan.prompts) + i) * len(settings) + j),
        )
        for n in range(plan.count)
        for i, prompt in enumerate(plan.prompts)
        for j, (name, sampling) in enumerate(settings.items())
    ]
    _draw(target, proposer, asked, plan, speculative, on_answer)
    _draw(target, None, asked, plan, plain, on_answer)
    found = _counted(target, asked, speculative, plan, name="speculative")
    control = _counted(target, asked, plain, plan, name="plain")
    fits = _tests(found, control, settings, plan.classes)
    level = plan.significance / len(fits)
    rejected = [name for name, fit in fits.items() if not fit.p_value >= level]
    accepted = [count for index in range(len(asked)) for count in speculative.accepted(index)]
    return Check(
        name="continuations",
        what="Sampled continuations with all tokens allowed have the target's distribution, token by token",
        passed=not rejected,
        numbers={
            "smallest_p_value": min(fit.p_value for fit in fits.values()),
            "settings": len(settings),
            "prompts": len(plan.prompts),
            "continuations": len(asked),
            "tokens_of_an_answer": plan.length,
            "positions": sum(sum(counts.by_class[Order.LIKELY].values()) for counts in found.values()),
            "borderline": sum(counts.borderline for counts in found.values()),
            "against": "the target's own probabilities in one pass over each text",
            "classes": plan.classes,
            "batch_size": plan.batch_size,
            "rounds": len(accepted),
            "accepted_per_round": sum(accepted) / max(len(accepted), 1),
            "tree": None if plan.tree is None else [plan.tree.steps, plan.tree.topk, plan.tree.num_draft_tokens],
            "tests": [row_of(name, fit, level) for name, fit in fits.items()],
        },
        limit=f"p-values of at least {level:.2g} ({plan.significance:g} over {len(fits)} tests)",
        failures=[f"{name}: p-value {fits[name].p_value:.2g}" for name in rejected[:5]],
    )


def _draw(
    target: Any,
    proposer: Proposer | None,
    asked: Sequence[_Asked],
    plan: Plan,
    journal: Journal,
    on_answer: Callable[[], None],
) -> None:
    """Every answer that ``journal`` lacks, all settings mixed; none for the proposer: by plain decoding."""
    left = [index for index in range(len(asked)) if index not in journal]

    def keep(place: int, generation: Generation) -> None:
        journal.add(left[place], generation.tokens, accepted=[r.accepted for r in generation.rounds])
        on_answer()

    options: dict[str, Any] = {
        "max_new_tokens": plan.length,
        "sampling": [asked[index].sampling for index in left],
        "batch_size": plan.batch_size,
        "on_done": keep,
    }
    prompts = [list(asked[index].prompt) for index in left]
    if proposer is None:
        decode_plain(target, prompts, **options)
    else:
        decode_speculative_batch(target, proposer, prompts, tree=plan.tree, **options)


def _counted(target: Any, asked: Sequence[_Asked], answers: Journal, plan: Plan, *, name: str) -> dict[str, _Counts]:
    """By setting. The first token of an answer belongs to no round and is not counted."""
    places = Places(target.vocab_size, slack=SLACK[target.precision], seed=2 * plan.seed + (name == "plain"))
    counts: dict[str, _Counts] = {}
    for one, answer, logits_TV in _judged(target, asked, answers):
        placed = list(places.of_answer(logits_TV, answer, one.sampling))[1:]
        counts.setdefault(one.setting, _Counts()).add(placed, plan.classes, places.spare())
    return counts


def _judged(target: Any, asked: Sequence[_Asked], answers: Journal) -> Iterator[tuple[_Asked, list[int], Any]]:
    """Every answer with the logits before each of its tokens; answers of a prompt are run together."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(asked):
        by_prompt.setdefault(tuple(one.prompt), []).append(index)
    for prompt, indices in by_prompt.items():
        for first in range(0, len(indices), TOGETHER):
            part = indices[first : first + TOGETHER]
            longest = max(len(answers[index]) for index in part)
            padded = [[*answers[i][:-1], *[0] * (longest - len(answers[i]))] for i in part]
            hidden_nTH = hidden_behind(target, prompt, padded)
            for index, hidden_TH in zip(part, hidden_nTH, strict=True):
                answer = answers[index]
                yield asked[index], answer, target.head(hidden_TH[: len(answer)])


def _tests(
    found: Mapping[str, _Counts], control: Mapping[str, _Counts], settings: Mapping[str, Sampling], classes: int
) -> dict[str, Fit]:
    """By name. Greedy tokens have one class only, so what they show is whether one of them is impossible."""
    sampled = [name for name, sampling in settings.items() if sampling.temperature]
    fits = {
        f"{name}, {order}": _fit([found[name].by_class[order]], classes)
        for name in settings
        for order in (Order if name in sampled else (Order.LIKELY,))
    }
    kinds = {
        "certain proposals": [name for name in sampled if not settings[name].draft_temperature],
        "drawn proposals": [name for name in sampled if settings[name].draft_temperature],
        "all settings": sampled,
    }
    for kind, names in kinds.items():
        if names:
            fits |= {f"{kind}, {order}": _fit((found[n].by_class[order] for n in names), classes) for order in Order}
    fits["all settings, neighbours"] = _fit((found[name].neighbours for name in sampled), classes, places=2)
    for order in Order:
        fits[f"plain decoding, all settings, {order}"] = _fit((control[n].by_class[order] for n in sampled), classes)
    return fits


def _fit(parts: Iterable[Counter[Any]], classes: int, *, places: int = 1) -> Fit:
    """Against equal shares of all cells; the cells of ``places`` positions in a row."""
    cells = range(classes) if places == 1 else [(a, b) for a in range(classes) for b in range(classes)]
    total: Counter[Any] = Counter()
    for part in parts:
        total.update(part)
    return against_distribution(total, dict.fromkeys(cells, 1.0 / len(cells)))


def _class(placed: Placed, order: Order, classes: int) -> int | str:
    return int(placed.point[order] * classes) if placed.possible else IMPOSSIBLE
