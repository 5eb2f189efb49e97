"""The certificate passes exact engines, rejects wrong ones, and its figures are those of the theory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from specflow.config.scheduler import SchedulerMode, SchedulerParams
from specflow.costs.tables import RowTable
from specflow.decoding import tree_verification
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import Sampling
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Proposal
from specflow.scheduling.allocation import allocate
from specflow.scheduling.budget import host_budget
from specflow.scheduling.planner import Planner
from specflow.scheduling.scheduler import Scheduler
from specflow.serving.verification import lossless
from specflow.serving.verification.check import Check
from specflow.serving.verification.goodness import POWER, against_distribution, of_two, together
from specflow.serving.verification.lossless import Plan, check_lossless
from specflow.serving.verification.restricted import RestrictedTarget, answer_distributions, likely_alphabet
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from tests.decoding.table_target import ConfidentTableProposer, TableProposer, TableTarget

torch.set_num_threads(1)
PROMPT = [1, 2, 0]
PLAN = Plan(samples=120, length=3, temperatures=(1.0,), significance=1e-3, batch_size=12)
TREE = TreeShape(steps=2, topk=2, num_draft_tokens=5)


def certificate(plan: Plan = PLAN, *, vocab: int = 4, **options: Any) -> Check:
    target = TableTarget(vocab)
    restricted = RestrictedTarget(target, None)
    return check_lossless(restricted, TableProposer(target, num_proposals=2, **options), PROMPT, plan)


@pytest.mark.parametrize("tree", [None, TREE])
def test_an_exact_engine_passes(tree: TreeShape | None) -> None:
    check = certificate(replace(PLAN, tree=tree))
    assert check.passed, check
    tests = {row["setting"]: row for row in check.numbers["tests"]}
    assert list(tests)[:3] == ["greedy", "T 1, all tokens", "T 1, top-k"]
    assert "T 1, min-p, drawn proposals" in tests
    assert (tests["greedy"]["cells"], tests["greedy"]["p_value"]) == (1, 1.0)
    assert tests["T 1, all tokens"]["cells"] > 5
    assert tests["all together"]["samples"] == check.numbers["samples"] == 120 * check.numbers["settings"]
    assert 0.1 < tests["T 1, all tokens"]["detectable"] < 0.5
    assert check.numbers["accepted_per_round"] > 0.3
    assert check.numbers["against"] == "the enumerated distribution"


def test_an_exact_engine_passes_against_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless, "ENUMERABLE", 1)
    check = certificate()
    assert check.passed, check
    assert check.numbers["against"] == "as many answers of plain decoding"


def _q_at_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = TableProposer.sample

    def flatter(self: TableProposer, anchor: int, draw: Any) -> Proposal:
        made = sample(self, anchor, draw)
        assert made.q_mV is not None
        return Proposal(tokens_m=made.tokens_m, q_mV=made.q_mV.sqrt() / made.q_mV.sqrt().sum(dim=1, keepdim=True))

    monkeypatch.setattr(TableProposer, "sample", flatter)


def _rejected_siblings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_verification, "without", lambda p_V, rejected: p_V)


@pytest.mark.parametrize(
    ("plant", "tree", "enumerable"),
    [
        (_q_at_another_temperature, None, 4096),
        (_rejected_siblings_stay, TREE, 4096),
        (_rejected_siblings_stay, TREE, 1),
    ],
)
def test_a_wrong_q_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    tree: TreeShape | None,
    enumerable: int,
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(lossless, "ENUMERABLE", enumerable)
    drawn = 0.0 if tree else 1.0
    settings = {f"T {t:g}": Sampling(temperature=t, draft_temperature=drawn) for t in (1.0, 1.5)}
    monkeypatch.setattr(lossless, "settings_of", lambda *_, **__: settings)
    check = certificate(replace(PLAN, tree=tree, samples=500))
    assert not check.passed
    assert check.numbers["tests"][-1]["setting"] == "all together"
    assert check.numbers["tests"][-1]["p_value"] < 1e-4
    assert "p-value" in check.failures[0]


def test_an_answer_that_cannot_be_is_rejected() -> None:
    fit = against_distribution({"a": 99, "c": 1}, {"a": 0.5, "b": 0.5})
    assert fit.p_value == 0.0


def test_p_values_are_uniform_for_equal_distributions() -> None:
    rng = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, 41)
    expected = dict(enumerate(weights / weights.sum()))
    draws = [rng.multinomial(300, list(expected.values())) for _ in range(800)]
    known = [against_distribution(dict(enumerate(map(int, d))), expected).p_value for d in draws]
    pairs = [
        of_two(dict(enumerate(map(int, a))), dict(enumerate(map(int, b)))).p_value
        for a, b in zip(draws[::2], draws[1::2], strict=True)
    ]
    assert kstest(known, "uniform").pvalue > 1e-3
    assert kstest(pairs, "uniform").pvalue > 1e-3


def test_the_stated_power_is_reached() -> None:
    """A shift of mass of the detectable size, spread as the bound assumes the worst."""
    rng = np.random.default_rng(1)
    expected = dict.fromkeys(range(20), 1 / 20)
    level = 1e-3
    size = against_distribution(Counter(dict.fromkeys(range(20), 50)), expected).detectable(level)
    assert size is not None
    shifted = [1 / 20 + (1 if i % 2 else -1) * size / 10 for i in range(20)]
    rejected = [
        against_distribution(dict(enumerate(map(int, rng.multinomial(1000, shifted)))), expected).p_value < level
        for _ in range(400)
    ]
    assert np.mean(rejected) > POWER - 3 * (POWER * (1 - POWER) / 400) ** 0.5


def test_several_tests_as_one() -> None:
    fits = [against_distribution({"a": 40 + i, "b": 60 - i}, {"a": 0.5, "b": 0.5}) for i in range(3)]
    both = together(fits)
    assert both.freedom == 3
    assert both.statistic == pytest.approx(sum(fit.statistic for fit in fits))
    assert both.p_value < min(fit.p_value for fit in fits)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(make_tiny_target(tmp_path_factory.mktemp("tiny"), 0), threads=1)


def test_a_real_target_with_a_few_tokens(target: Target) -> None:
    """Plain decoding says only allowed tokens, with the probabilities that are computed."""
    allowed = likely_alphabet(target, [5, 6, 7], 8)
    assert len(allowed) == 8
    restricted = RestrictedTarget(target, allowed)
    samplings = {"all": Sampling(temperature=1.0), "penalised": Sampling(temperature=0.8, frequency_penalty=2.0)}
    known = answer_distributions(restricted, [5, 6, 7], length=2, samplings=samplings)
    decoder: Any = restricted
    for name, sampling in samplings.items():
        assert sum(known[name].values()) == pytest.approx(1.0)
        asked = [replace(sampling, seed=n) for n in range(300)]
        found = decode_plain(decoder, [[5, 6, 7]] * 300, max_new_tokens=2, sampling=asked, batch_size=64)
        counts = Counter(tuple(g.tokens) for g in found)
        assert {token for answer in counts for token in answer} <= set(allowed)
        assert against_distribution(counts, known[name]).p_value > 1e-4


BUMPY = RowTable(rows=(1, 2, 3), rounds_per_second=(10.0, 6.0, 5.9), max_rows=3)
"""The second row alone is dear, the third next to nothing: two are worth while, or none."""
STEEP = RowTable(rows=tuple(range(12, 37)), rounds_per_second=tuple(12.0 / n for n in range(13, 38)), max_rows=36)


def scheduled(mode: SchedulerMode, cost: RowTable, plan: Plan, *, vocab: int = 4, sharp: float = 3.0) -> Check:
    target = TableTarget(vocab)
    params = SchedulerParams(mode=mode, lag=1, explore=0.1 if mode == "lagged" else None)
    made = replace(plan, scheduler=Scheduler(params=params, num_proposals=2, cost=cost))
    return check_lossless(
        RestrictedTarget(target, None), ConfidentTableProposer(target, num_proposals=2, sharp=sharp), PROMPT, made
    )


@pytest.mark.parametrize("mode", ["off", "causal", "lagged"])
def test_schedulers_pass(mode: SchedulerMode) -> None:
    """Requests of all settings, greedy and sampled, share the rows of one pass."""
    check = scheduled(mode, STEEP, PLAN)
    assert check.passed, check
    assert check.numbers["scheduler"] == mode
    assert (check.numbers["rounds_cut"] > 100) == (mode != "off")
    assert check.numbers["accepted_per_round"] > 0.05


def test_a_budget_that_looks_ahead_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-example of METHODS 6.3: the best budget of the current round's own confidence."""

    def anticipating(self: Planner, slots: Any, survival_RM: Any) -> Any:
        assert self.cost is not None
        return allocate(survival_RM, host_budget(survival_RM, self.cost).positions, self.limits)

    drawn = {"drawn proposals": Sampling(temperature=1.0, draft_temperature=1.0)}
    monkeypatch.setattr(lossless, "settings_of", lambda *a, **k: drawn)
    alone = replace(PLAN, samples=2000, length=2, batch_size=1)
    assert scheduled("causal", BUMPY, alone, vocab=3, sharp=1.5).passed
    monkeypatch.setattr(Planner, "plan", anticipating)
    check = scheduled("causal", BUMPY, alone, vocab=3, sharp=1.5)
    assert not check.passed
    assert check.failures[0].startswith("drawn proposals: p-value")
