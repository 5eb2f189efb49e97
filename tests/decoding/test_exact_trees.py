"""Decoding with trees has exactly the target's distribution: all outputs enumerated, rules and planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.decoding import chooser, tree_verification
from specflow.decoding.chooser import Chooser
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import Sampling
from specflow.decoding.speculative import decode_speculative, decode_speculative_batch
from specflow.decoding.trees import Tree, TreeShape
from specflow.decoding.verification import verify_chain
from specflow.drafters.base import Proposal
from tests.decoding.enumeration import Output, output_distribution, total_variation
from tests.decoding.table_target import TableProposer, TableTarget
from tests.decoding.test_exact_chains import LENGTH, PROMPT, SETTINGS, reference

VOCAB = 4
WIDE = (2, 3, 8)
SHAPES = [(1, 3, 4), (2, 2, 5), (3, 2, 7), (2, 1, 3)]


pytestmark = pytest.mark.usefixtures("remembered_distributions")


def shape(steps: int, topk: int, size: int) -> TreeShape:
    return TreeShape(steps=steps, topk=topk, num_draft_tokens=size)


def distance(
    monkeypatch: pytest.MonkeyPatch,
    sampling: Sampling,
    *,
    tree: TreeShape,
    vocab: int = VOCAB,
    ends: frozenset[int] = frozenset(),
    excluded: tuple[int, ...] = (),
) -> float:
    target: Any = TableTarget(vocab, ends=ends)
    proposer = TableProposer(target, num_proposals=2, excluded=excluded)

    def decode() -> Output:
        found = decode_speculative(target, proposer, PROMPT, max_new_tokens=LENGTH, sampling=sampling, tree=tree)
        return tuple(found.tokens)

    found = output_distribution(decode, monkeypatch)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(found, reference(target, sampling))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_sampling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    settings: dict[str, Any] = SETTINGS[name]
    assert distance(monkeypatch, Sampling(**settings), tree=shape(*WIDE)) < 1e-12


@pytest.mark.parametrize("sizes", SHAPES)
def test_every_shape(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]) -> None:
    sampling = Sampling(temperature=1.5, top_k=3, frequency_penalty=0.9)
    assert distance(monkeypatch, sampling, tree=shape(*sizes)) < 1e-12


def test_a_drafter_that_cannot_propose_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(temperature=1.0)
    assert distance(monkeypatch, sampling, tree=shape(2, 3, 9), excluded=(0, 3)) < 1e-12
    assert distance(monkeypatch, sampling, tree=shape(2, 2, 5), excluded=tuple(range(VOCAB))) < 1e-12


def test_siblings_that_are_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distance(monkeypatch, Sampling(temperature=1.5), tree=shape(2, 3, 10), vocab=3) < 1e-12


def test_end_tokens_within_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(temperature=1.0, presence_penalty=0.5)
    assert distance(monkeypatch, sampling, tree=shape(*WIDE), ends=frozenset({2})) < 1e-12


def test_requests_that_draw_their_proposals_are_chains_beside_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(temperature=1.0, top_k=3, frequency_penalty=0.5, draft_temperature=0.8)
    assert distance(monkeypatch, sampling, tree=shape(*WIDE), vocab=3) < 1e-12


def mixed() -> list[Sampling]:
    return [
        Sampling(),
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=1.2, top_p=0.9, draft_temperature=1.0, seed=2),
        Sampling(frequency_penalty=0.8, repetition_penalty=1.3),
        Sampling(temperature=1.0, top_k=3, min_p=0.02, presence_penalty=0.5, seed=3),
    ]


def test_a_batch_gives_what_its_requests_give_alone() -> None:
    """Greedy and sampled, trees and chains side by side, by the real random numbers."""
    target: Any = TableTarget(7)
    proposer = TableProposer(target, num_proposals=2)
    prompts, asked = [[1, 2, i % 7] for i in range(10)], mixed() * 2
    tree = shape(3, 3, 12)
    alone = [
        decode_speculative(target, proposer, prompt, max_new_tokens=9, sampling=sampling, tree=tree)
        for prompt, sampling in zip(prompts, asked, strict=True)
    ]
    for size in (3, 10):
        found = decode_speculative_batch(
            target, proposer, prompts, max_new_tokens=9, sampling=asked, batch_size=size, tree=tree
        )
        assert [(g.tokens, [r.accepted for r in g.rounds]) for g in found] == [
            (g.tokens, [r.accepted for r in g.rounds]) for g in alone
        ]
    greedy = decode_plain(target, prompts, max_new_tokens=9)
    assert [alone[i].tokens for i in (0, 5)] == [greedy[i].tokens for i in (0, 5)]
    drawn = {r.tree_nodes for i in (2, 7) for r in alone[i].rounds}
    assert drawn == {0}, "requests that draw are chains"
    assert all(1 < r.tree_nodes <= 11 for i in (0, 1, 3, 4) for r in alone[i].rounds)


def test_one_branch_is_a_chain_of_certain_proposals() -> None:
    """The same decisions by the same random numbers."""
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for seed in range(400):
        logits_RV = 2 * torch.randn(4, 3, generator=generator)
        tokens = torch.randint(0, 3, (3,), generator=generator)
        sampling = Sampling(temperature=0.6, frequency_penalty=0.4, seed=seed)
        accepted, token = verify_chain(logits_RV, Proposal(tokens_m=tokens), Chooser(sampling))
        path, other = tree_verification.walk_sampled(logits_RV, Tree.chain(tokens.tolist()), Chooser(sampling))
        assert (path, other) == (list(range(1, accepted + 1)), token)
        seen.add(accepted)
    assert seen == {0, 1, 2, 3}


def test_the_number_of_accepted_tokens_is_that_of_the_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """One level: a tree accepts with the sum of its siblings' probabilities, more than a chain."""
    from specflow.decoding.distribution import distribution

    logits_RV, made = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), Sampling(temperature=1.0)
    p_V = distribution(logits_RV[0], made, {})
    tree = Tree(tokens=[4, 1, 3], parents=[0, 0, 0])
    runs = 1000
    accepted = sum(
        bool(tree_verification.walk_sampled(logits_RV, tree, Chooser(Sampling(temperature=1.0, seed=s)))[0])
        for s in range(runs)
    )
    expected = float(p_V[[4, 1, 3]].sum())
    assert abs(accepted / runs - expected) < 5 * (expected * (1 - expected) / runs) ** 0.5


# Planted bugs: each must be seen.


def _no_sibling_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sibling is compared with its own probability, by the same number."""

    def each(p_V: Tensor, proposed: Sequence[int], own: Chooser, *, place: tuple[int, int]) -> int | None:
        coin = own.random.coin(place=place)
        return next((i for i, p in enumerate(p_V[list(proposed)].tolist()) if coin < p), None)

    monkeypatch.setattr(tree_verification, "_among", each)


def _rejected_siblings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_verification, "without", lambda p_V, rejected: p_V)


def _only_the_last_sibling_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = tree_verification.without
    monkeypatch.setattr(tree_verification, "without", lambda p_V, rejected: removed(p_V, list(rejected)[-1:]))


def _penalties_ignore_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    after = chooser.Chooser.after
    monkeypatch.setattr(chooser.Chooser, "after", lambda self, tokens=(): after(self))


def _judged_by_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = tree_verification.walk_sampled
    from specflow.decoding import drafts

    monkeypatch.setattr(drafts, "walk_sampled", lambda logits_RV, *rest: walk(logits_RV.roll(1, dims=0), *rest))


@pytest.mark.parametrize(
    ("plant", "options"),
    [
        (_no_sibling_mass, {}),
        (_rejected_siblings_stay, {}),
        (_only_the_last_sibling_is_removed, {}),
        (_penalties_ignore_the_path, {"frequency_penalty": 0.9}),
        (_judged_by_the_row_before, {}),
    ],
)
def test_planted_bugs_are_seen(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], options: dict[str, float]
) -> None:
    plant(monkeypatch)
    assert distance(monkeypatch, Sampling(temperature=1.0, **options), tree=shape(2, 2, 6), vocab=3) > 1e-3  # type: ignore[arg-type]
