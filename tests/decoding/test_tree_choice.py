"""``tree: auto``: what is predicted to be accepted is what decoding accepts; the fastest shape wins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specflow.decoding import tree_choice
from specflow.decoding.plain import decode_plain
from specflow.decoding.tree_choice import Written, candidates, choose_tree, ranks_of
from specflow.decoding.trees import Grown, TreeShape, draft_tree, keep_best
from specflow.drafters.base import Committed
from tests.decoding.proposers import ScriptedProposer
from tests.decoding.table_target import TableProposer, TableTarget

torch.set_num_threads(1)


def texts(target: Any, count: int = 6) -> list[Written]:
    prompts = [[i, 2, 1] for i in range(count)]
    return [
        Written(p, g.tokens) for p, g in zip(prompts, decode_plain(target, prompts, max_new_tokens=30), strict=True)
    ]


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The target's pass costs the same for any number of rows; drafting is free."""
    found = dict.fromkeys(tree_choice.ROWS, 1.0)
    monkeypatch.setattr(tree_choice, "verify_seconds", lambda *_: found)
    monkeypatch.setattr(tree_choice, "perf_counter", lambda: 0.0)
    return found


def test_predicted_acceptance_is_that_of_the_trees_themselves(costs: dict[int, float]) -> None:
    target: Any = TableTarget(6)
    proposer = TableProposer(target, num_proposals=3)
    given = texts(target)
    choice = choose_tree(target, proposer, given)
    for shape in (TreeShape(steps=3, topk=2, num_draft_tokens=6), TreeShape(steps=2, topk=4, num_draft_tokens=12)):
        tokens = rounds = 0
        for text in given:
            ids, position = [*text.prompt, *text.answer], len(text.prompt)
            while position < len(ids) - tree_choice.STEPS:
                proposer.reset(100)
                proposer.extend(
                    Committed(
                        features_TKH=torch.tensor(ids[:position]).view(-1, 1, 1),
                        next_ids_T=torch.tensor(ids[1 : position + 1]),
                    )
                )
                tree, slot, rounds, begin = draft_tree(proposer, ids[position], shape), 0, rounds + 1, position
                for token in ids[position + 1 :]:
                    slot = next((c for c in tree.children[slot] if tree.tokens[c - 1] == token), 0)
                    if not slot:
                        break
                    position += 1
                position += 1
                tokens += position - begin
        (predicted,) = [p for p in choice.predictions if p.shape == shape]
        assert predicted.tau == pytest.approx(tokens / rounds)
        assert 1 < predicted.tau <= 1 + shape.steps


def test_the_largest_tree_wins_where_rows_are_free_and_a_chain_where_they_are_dear(costs: dict[int, float]) -> None:
    target: Any = TableTarget(6)
    proposer = TableProposer(target, num_proposals=3)
    free = choose_tree(target, proposer, texts(target))
    assert free.best.tau == max(p.tau for p in free.predictions)
    assert free.best.shape.topk > 1
    assert free.gain > 1
    assert free.chain.shape == TreeShape(steps=3, topk=1, num_draft_tokens=4)
    assert f"{free.gain:.2f} times the chain of 3" in str(free)
    assert free.as_json()["gain"] == pytest.approx(free.best.tau / free.chain.tau)
    costs.update({rows: float(rows) ** 3 for rows in costs})
    assert choose_tree(target, proposer, texts(target)).best.shape == TreeShape(steps=1, topk=1, num_draft_tokens=2)


def test_every_candidate_is_a_shape_that_fits() -> None:
    found = list(candidates())
    assert len(found) == len(set(found)) > 100
    assert {shape.num_draft_tokens for shape in found} == set(tree_choice.ROWS)
    assert {s.steps for s in found if s.topk == 1} == set(range(1, tree_choice.STEPS + 1))


def test_ranks_along_a_text() -> None:
    grown = Grown(tokens=[7, 8, 7, 9], parents=[-1, -1, 0, 0], scores=[-1.0, -2.0, -3.0, -1.5])
    assert ranks_of(grown, [7, 9, 7]) == [0, 1]
    assert ranks_of(grown, [7, 7]) == [0, 3]
    assert ranks_of(grown, [9]) == []
    for count in range(1, 5):
        kept = keep_best(grown, count)
        assert (len(kept.tokens) > 3) == all(rank < count for rank in ranks_of(grown, [7, 7]))


def test_bad_input_is_refused(costs: dict[int, float]) -> None:
    target: Any = TableTarget(6)
    short = [Written([1, 2], [3] * tree_choice.STEPS)]
    with pytest.raises(ValueError, match="answers of more than 9 tokens"):
        choose_tree(target, TableProposer(target, num_proposals=2), short)
    chains: Any = ScriptedProposer([1], [], num_proposals=2, right=lambda _: 0)
    with pytest.raises(ValueError, match="chains only"):
        choose_tree(target, chains, texts(target))


def test_measured_costs_are_of_every_number_of_rows() -> None:
    target: Any = TableTarget(6)
    found = tree_choice.verify_seconds(target, 5, ())
    assert list(found) == list(tree_choice.ROWS)
    assert all(seconds > 0 for seconds in found.values())
