"""Continuations with all tokens allowed: exact engines pass, wrong ones are rejected, classes are what they claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from specflow.decoding import chooser, tree_verification, verification
from specflow.decoding.distribution import distribution
from specflow.decoding.sampling import Sampling
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Proposal
from specflow.serving.verification import continuations
from specflow.serving.verification.check import Check
from specflow.serving.verification.classes import Order, Placed, Places
from specflow.serving.verification.continuations import Plan, check_continuations
from specflow.serving.verification.journal import Journal
from specflow.serving.verification.shared_prompts import SharedPrompts
from specflow.targets.target import Target as RealTarget
from specflow.targets.tiny import make_tiny_target
from tests.decoding.table_target import TableProposer, TableTarget

torch.set_num_threads(1)
PLAN = Plan(
    prompts=[[1, 2, 0], [3, 1]], count=4, length=12, temperatures=(1.0,), classes=4, significance=1e-3, batch_size=8
)
TREE = TreeShape(steps=2, topk=2, num_draft_tokens=5)


class Target(TableTarget):
    precision = "fp32"


def certificate(path: Path, plan: Plan = PLAN, *, ends: frozenset[int] = frozenset({5})) -> Check:
    target = Target(10, ends=ends)
    drafted, plain = (Journal(path / f"{name}.jsonl") for name in ("speculative", "plain"))
    proposer = TableProposer(target, num_proposals=3)
    return check_continuations(target, proposer, plan, speculative=drafted, plain=plain)


@pytest.mark.parametrize("tree", [None, TREE])
def test_an_exact_engine_passes(tmp_path: Path, tree: TreeShape | None) -> None:
    check = certificate(tmp_path, replace(PLAN, tree=tree))
    assert check.passed, check
    numbers = check.numbers
    tests = {row["setting"]: row for row in numbers["tests"]}
    # Greedy, four filters and penalties, the last five with drawn proposals too: two orders each, greedy one.
    assert (numbers["settings"], len(tests)) == (11, 1 + 10 * 2 + 3 * 2 + 1 + 2)
    assert tests["T 1, top-p, drawn proposals, seen"]["cells"] == 4
    assert tests["all settings, neighbours"]["cells"] == 16
    of_drawn = sum(row["samples"] for name, row in tests.items() if name.endswith(", drawn proposals, likely"))
    assert tests["drawn proposals, likely"]["samples"] == of_drawn
    assert numbers["continuations"] == 11 * 2 * 4
    greedy = tests["greedy, likely"]["samples"]
    assert numbers["positions"] == greedy + tests["all settings, likely"]["samples"]
    assert 0.03 < tests["all settings, likely"]["detectable"] < 0.3
    assert numbers["accepted_per_round"] > 0.3
    assert numbers["borderline"] == 0


def _q_at_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = TableProposer.sample

    def flatter(self: TableProposer, anchor: int, draw: Any) -> Proposal:
        made = sample(self, anchor, draw)
        assert made.q_mV is not None
        return Proposal(tokens_m=made.tokens_m, q_mV=made.q_mV.sqrt() / made.q_mV.sqrt().sum(dim=1, keepdim=True))

    monkeypatch.setattr(TableProposer, "sample", flatter)


def _rejected_siblings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_verification, "without", lambda p_V, rejected: p_V)


def _penalties_forget_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser.Chooser, "after", lambda self, tokens=(): Counter())


def _no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_tokens(logits_V: Tensor, sampling: Sampling, emitted: Mapping[int, int]) -> Tensor:
        return distribution(logits_V, replace(sampling, top_k=None, top_p=1.0), emitted)

    monkeypatch.setattr(verification, "distribution", all_tokens)


@pytest.mark.parametrize(
    ("plant", "tree", "temperature", "named"),
    [
        (_q_at_another_temperature, None, 1.5, "drawn proposals, likely"),
        (_rejected_siblings_stay, TREE, 1.5, "certain proposals, likely"),
        (_penalties_forget_the_round, None, 0.7, "penalties, seen"),
        (_no_filter, None, 1.5, "top-p"),
    ],
)
def test_a_wrong_engine_is_rejected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    tree: TreeShape | None,
    temperature: float,
    named: str,
) -> None:
    plant(monkeypatch)
    check = certificate(tmp_path, replace(PLAN, tree=tree, count=16, temperatures=(temperature,)))
    assert not check.passed
    level = 1e-3 / len(check.numbers["tests"])
    rejected = [row["setting"] for row in check.numbers["tests"] if row["p_value"] < level]
    assert any(named in setting for setting in rejected), rejected
    assert not any("plain" in setting for setting in rejected)


def test_answers_drawn_before_a_kill_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = certificate(tmp_path / "whole")
    add, calls = Journal.add, []

    def killed(self: Journal, *args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == 30:
            raise KeyboardInterrupt
        add(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            certificate(tmp_path / "killed")
    assert len(Journal(tmp_path / "killed" / "speculative.jsonl")) == 29
    assert certificate(tmp_path / "killed") == whole


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=5, top_p=0.8)])
def test_points_lie_where_the_definition_says(sampling: Sampling) -> None:
    """Tokens side by side in their order: the numbers 0 and 1 give both ends of a token's share."""
    logits_V = torch.tensor([0.3, -1.0, 2.0, 0.3, 0.3, 1.1, -4.0, 2.0])
    p_V = distribution(logits_V, sampling, {})
    places = Places(8, slack=1e-4, seed=0)
    answer, ranked = [7, 3], places._rank_V.argsort().tolist()
    orders = {
        Order.LIKELY: sorted(range(8), key=lambda token: (-float(p_V[token]), token)),
        Order.SEEN: [t for t in ranked if t in answer] + [t for t in ranked if t not in answer],
    }
    for number in (0.0, 0.5):
        places._numbers = type("Fixed", (), {"random": staticmethod(lambda number=number: number)})()
        for token in p_V.nonzero().flatten().tolist():
            *_, placed = places.of_answer(logits_V.expand(3, -1), [*answer, token], sampling)
            for order, tokens in orders.items():
                before = float(p_V[tokens[: tokens.index(token)]].sum())
                assert placed.point[order] == pytest.approx(before + number * float(p_V[token]), abs=1e-12)


def test_points_of_the_right_distribution_are_uniform() -> None:
    generator, places = torch.Generator().manual_seed(3), Places(50, slack=1e-4, seed=1)
    sampling = Sampling(temperature=1.0, top_p=0.9)
    points: dict[Order, list[float]] = {order: [] for order in Order}
    for _ in range(1500):
        logits_V = 2.0 * torch.randn(50, generator=generator)
        token = int(torch.multinomial(distribution(logits_V, sampling, {}), 1, generator=generator))
        (placed,) = places.of_answer(logits_V[None], [token], sampling)
        for order in Order:
            points[order].append(placed.point[order])
    for order in Order:
        assert kstest(points[order], "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("given", "token", "borderline"),
    [
        ({"top_k": 2}, 2, True),  # the next one after the border
        ({"top_k": 2}, 3, False),
        ({"top_p": 0.64999}, 2, True),  # the two before it have 0.65
        ({"top_p": 0.6}, 2, False),
        ({"min_p": 0.30000001}, 1, True),
        ({"min_p": 0.31}, 1, False),
    ],
)
def test_what_rounding_decides_is_no_impossible_token(given: dict[str, Any], token: int, borderline: bool) -> None:
    logits_V = torch.tensor([0.5, 0.15, 0.12, 0.115, 0.115]).log()
    sampling = Sampling(temperature=1.0, **given)
    assert float(distribution(logits_V, sampling, {})[token]) == 0.0
    (placed,) = Places(5, slack=1e-4, seed=0).of_answer(logits_V[None], [token], sampling)
    assert (placed.possible, placed.borderline) == (borderline, borderline)


def test_greedy_tokens_are_the_argmax_or_nearly() -> None:
    logits_V = torch.tensor([10.0, 9.9995, 9.9])
    found = [next(Places(3, slack=1e-4, seed=0).of_answer(logits_V[None], [token], Sampling())) for token in range(3)]
    assert [(p.possible, p.borderline) for p in found] == [(True, False), (True, True), (False, False)]


def test_numbers_used_twice_are_seen_in_neighbours() -> None:
    """Every class is as frequent as it should be, and equal to the one before."""
    counts = continuations._Counts()
    for i in range(400):
        point = dict.fromkeys(Order, ((i * 7) % 40 + 0.5) / 40)
        counts.add([Placed(point=point, possible=True)] * 2, 4, 0.5)
    assert continuations._fit([counts.by_class[Order.LIKELY]], 4).p_value > 0.99
    assert continuations._fit([counts.neighbours], 4, places=2).p_value < 1e-9


def test_a_prompt_that_is_run_once_leaves_what_its_own_pass_would(tmp_path: Path) -> None:
    real = RealTarget.load(make_tiny_target(tmp_path, 0), threads=1)
    prompt, options = [5, 6, 7, 8], {"layer_ids": (0, 2)}
    shared: Any = SharedPrompts(real, [prompt])
    caches = [real.new_cache(2, 12) for _ in range(2)]
    for row in range(2):  # the second is the kept one
        wanted, found = (
            one.forward(torch.tensor([prompt]), cache.rows(row, 1), **options)
            for one, cache in zip((real, shared), caches, strict=True)
        )
        assert torch.equal(found.last_hidden_BTH, wanted.last_hidden_BTH)
        assert torch.equal(found.features_BTKH, wanted.features_BTKH)
        for cache in caches:
            cache.committed_B[row] = len(prompt)
    ids_B1 = torch.tensor([[9], [3]])
    wanted, found = (one.forward(ids_B1, cache) for one, cache in zip((real, shared), caches, strict=True))
    assert torch.equal(found.last_hidden_BTH, wanted.last_hidden_BTH)
    assert len(shared._passed) == 1
