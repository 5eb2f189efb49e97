"""What the product computes in its own form equals the operators, on the same inputs and the same random numbers.

The convolution, greedy acceptance and, on CUDA, the attention of blocks are the operators themselves. Codes of features
are compared in ``interpreted/test_quantize_features.py``.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specflow_kernels.allocate_budget import allocate_budget
from specflow_kernels.anchored_block_attention import anchored_block_attention
from specflow_kernels.build_tree import build_tree
from specflow_kernels.drawing import draw
from specflow_kernels.markov_walk import markov_walk
from specflow_kernels.selector import selector_lattice, selector_walk
from specflow_kernels.verify_chain import verify_chain as chain_operator
from specflow_kernels.verify_tree import verify_tree as tree_operator
from torch import Tensor

from specflow.decoding.chooser import Chooser
from specflow.decoding.distribution import distribution
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.tree_verification import walk_greedy, walk_sampled
from specflow.decoding.trees import Grown, Tree, keep_best
from specflow.decoding.verification import verify_chains
from specflow.drafters.base import Proposal
from specflow.drafters.dflash.attention import Span, block_attention, starts
from specflow.drafters.dflash.chunked_attention import Rule
from specflow.scheduling.allocation import allocate
from specflow.scheduling.limits import Limits
from tests.drafters.dflash2_helpers import network2, proposer2
from tests.drafters.dspark_helpers import dspark_network, dspark_proposer
from tests.drafters.helpers import VOCAB, committed, document, tables

torch.set_num_threads(1)
SAMPLED = Sampling(temperature=0.7)


class Coins:
    """Random numbers that are given: one per proposal or depth, and the last one for the draw from the target."""

    def __init__(self, coins: Tensor) -> None:
        self.coins = coins.tolist()

    def coin(self, *, place: tuple[int, ...]) -> float:
        found: float = self.coins[place[1]]
        return found

    def accepts(self, *, p: float, q: float, place: tuple[int, ...]) -> bool:
        return self.coin(place=place) * q < p

    def choose(self, weights_V: Tensor, **_: Any) -> int:
        return draw(weights_V, self.coins[-1])


def chooser_of(sampling: Sampling, coins: Tensor) -> Chooser:
    made = Chooser(sampling)
    made.random = Coins(coins)  # type: ignore[assignment]
    return made


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), batch=st.integers(1, 4), proposals=st.integers(1, 5), drawn=st.booleans())
def test_chains_are_verified_alike(seed: int, batch: int, proposals: int, drawn: bool) -> None:
    g, vocabulary = random(seed), 6
    logits = 2 * torch.randn(batch, proposals + 1, vocabulary, generator=g)
    greedy = torch.randint(2, (batch,), generator=g).bool()
    q = (2 * torch.randn(batch, proposals, vocabulary, generator=g)).softmax(dim=-1)
    draft = torch.multinomial(q.flatten(0, 1), 1, generator=g).view(batch, proposals)
    draft = torch.where(torch.rand(draft.shape, generator=g) < 0.5, logits[:, :-1].argmax(dim=-1), draft)
    coins = torch.rand(batch, proposals + 1, generator=g)
    choosers = [chooser_of(GREEDY if greedy[b] else SAMPLED, coins[b]) for b in range(batch)]
    given_q = q if drawn else None
    found = verify_chains(
        logits, [Proposal(tokens_m=draft[b], q_mV=q[b] if drawn else None) for b in range(batch)], choosers
    )
    target = torch.stack(
        [torch.stack([distribution(row, chooser.sampling, {}) for row in rows])
         for rows, chooser in zip(logits, choosers, strict=True)]
    )  # fmt: skip
    accepted, following = chain_operator(draft, target, greedy_B=greedy, coins_BR=coins, q_BMV=given_q)
    assert found == list(zip(accepted.tolist(), following.tolist(), strict=True))


@st.composite
def trees(draw_: st.DrawFn) -> Tree:
    """Parents before children, siblings that differ."""
    tokens: list[int] = []
    parents: list[int] = []
    for slot in range(draw_(st.integers(1, 9))):
        parent = draw_(st.integers(0, slot))
        used = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        free = sorted(set(range(6)) - used)
        if free:
            tokens.append(draw_(st.sampled_from(free)))
            parents.append(parent)
    return Tree(tokens=tokens, parents=parents)


def links(tree: Tree) -> tuple[Tensor, Tensor]:
    """First child and next sibling of every slot, as the operator takes them."""
    slots = len(tree.tokens) + 1
    child, sibling = torch.full((slots,), -1), torch.full((slots,), -1)
    for slot, children in enumerate(tree.children):
        for before, after in itertools.pairwise(children):
            sibling[before] = after
        if children:
            child[slot] = children[0]
    return child, sibling


@settings(max_examples=60, deadline=None)
@given(tree=trees(), seed=st.integers(0, 9999), greedy=st.booleans())
def test_trees_are_verified_alike(tree: Tree, seed: int, greedy: bool) -> None:
    g, slots = random(seed), len(tree.tokens) + 1
    logits = 2 * torch.randn(slots, 6, generator=g)
    coins_of_depths = torch.rand(max(tree.depths) + 2, generator=g)
    chooser = chooser_of(GREEDY if greedy else SAMPLED, coins_of_depths)
    target = torch.stack([distribution(row, chooser.sampling, {}) for row in logits])
    # The product has one number per depth, the operator one per slot.
    coins = torch.cat((coins_of_depths[torch.tensor(tree.depths)], coins_of_depths[-1:]))
    found = walk_greedy(logits.argmax(dim=-1).tolist(), tree) if greedy else walk_sampled(logits, tree, chooser)
    child, sibling = links(tree)
    path, accepted, following = tree_operator(
        torch.tensor([[0, *tree.tokens]]), child[None], sibling[None], target[None],
        greedy_B=torch.tensor([greedy]), coins_BD=coins[None], depth=max(tree.depths),
    )  # fmt: skip
    assert found == (path[0, 1 : 1 + int(accepted)].tolist(), int(following))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(0, 14))
def test_the_best_nodes_of_an_expansion_are_the_same(data: st.DataObject, count: int) -> None:
    """Scores of few values, so that most are equal."""
    grown = Grown()
    for node in range(data.draw(st.integers(max(1, count), 16))):
        parent = data.draw(st.integers(-1, node - 1))
        above = 0.0 if parent < 0 else grown.scores[parent]
        grown.tokens.append(node)
        grown.parents.append(parent)
        grown.scores.append(above - data.draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])))
    kept = keep_best(grown, count)
    made = build_tree(
        torch.tensor([99]), torch.tensor([grown.scores]), torch.tensor([grown.tokens]), torch.tensor([grown.parents]),
        slots=count + 1, levels=16,
    )  # fmt: skip
    assert made.tokens_BD[0].tolist() == [99, *kept.tokens]
    assert made.parent_BD[0].tolist() == [-1, *kept.parents]
    assert made.depth_BD[0].tolist() == kept.depths
    child, sibling = links(kept)
    assert torch.equal(made.child_BD[0], child)
    assert torch.equal(made.sibling_BD[0], sibling)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(), requests=st.integers(1, 5), proposals=st.integers(1, 6), budget=st.integers(-2, 32),
    longest=st.none() | st.integers(1, 7),
)  # fmt: skip
def test_a_budget_is_spent_alike(
    data: st.DataObject, requests: int, proposals: int, budget: int, longest: int | None
) -> None:
    value = st.sampled_from([1.0, 1.0, 0.5, 0.5, 0.25, 1e-4])
    rows = st.lists(value, min_size=proposals, max_size=proposals)
    survival = np.cumprod(data.draw(st.lists(rows, min_size=requests, max_size=requests)), axis=1, dtype=np.float32)
    limits = Limits(num_proposals=proposals, longest=None if longest is None else min(longest, proposals + 1))
    found = allocate(survival.astype(np.float64), budget, limits)
    wanted = allocate_budget(torch.from_numpy(survival), torch.tensor(max(0, budget)))
    assert found.tolist() == wanted.clamp(limits.shortest, limits.most).tolist()


@pytest.mark.parametrize("head", ["markov", "gated", "rnn"])
def test_the_sequential_head_walks_alike(head: str) -> None:
    network = dspark_network(head)
    made = dspark_proposer(network)
    made.reset(40)
    made.extend(committed(document(4).features[:12]))
    with torch.no_grad():
        for anchor in range(0, VOCAB, 5):
            hidden = made.hidden(anchor)
            state = network.markov_head.initial_state(hidden[:1])

            def mix(step: int, embedded: Tensor, hidden: Tensor = hidden) -> Tensor:
                nonlocal state
                code, state = network.markov_head.step(hidden[step : step + 1], embedded, state)
                return code

            walk = markov_walk(
                made.score(hidden)[None], torch.tensor([anchor]), network.markov_head.markov_w1.weight,
                network.markov_head.markov_w2.weight, greedy_B=torch.tensor([True]), temperature_B=torch.ones(1),
                seed_B=torch.zeros(1, dtype=torch.int64), mix=mix,
            )  # fmt: skip
            assert walk.tokens_BM[0].tolist() == made.propose(anchor).tolist()
            torch.testing.assert_close(
                walk.logits_BMV[0], made.corrected(anchor, walk.tokens_BM[0]), rtol=1e-5, atol=1e-5
            )
            assert made.confidence_m is not None
            assert network.confidence_head is not None
            confidence = network.confidence_head(hidden, walk.embeddings_BMr[0])
            torch.testing.assert_close(confidence, made.confidence_m, rtol=1e-5, atol=1e-5)


def test_the_selector_chooses_alike() -> None:
    network, doc = network2(), document(5, 30)
    torch.manual_seed(0)
    assert network.selector is not None
    made = proposer2(network, doc, 12)
    _, head = tables()
    for anchor in range(0, VOCAB, 5):
        candidates, lattice = made.lattice(anchor)
        with torch.no_grad():
            hidden = made.hidden(anchor)
            own = network.geometry.shape.of((hidden @ head.T).gather(1, candidates))
            wanted = selector_lattice(
                own[None], candidates[None], torch.tensor([anchor]), network.selector.hidden_projection(hidden)[None],
                network.selector.predecessor_codebook, network.selector.successor_codebook,
            )[0]  # fmt: skip
        torch.testing.assert_close(lattice, wanted, rtol=1e-5, atol=1e-5)
        both = {"temperature_N": torch.tensor([SAMPLED.temperature]), "coins_NM": torch.rand(1, len(candidates))}
        tokens, _ = selector_walk(lattice[None], candidates[None], greedy_N=torch.tensor([True]), **both)
        assert tokens[0].tolist() == made.propose(anchor).tolist()

        # The sampled walk: the same coins, and q over the whole vocabulary instead of over the candidates.
        tokens, q = selector_walk(lattice[None], candidates[None], greedy_N=torch.tensor([False]), **both)
        coins = iter(both["coins_NM"][0].tolist())

        def chosen(logits_V: Tensor, coins: Any = coins) -> tuple[int, Tensor]:
            q_V = distribution(logits_V, SAMPLED, {})
            return draw(q_V, next(coins)), q_V

        proposal = made.sample(anchor, chosen)
        assert proposal.tokens_m.tolist() == tokens[0].tolist()
        assert proposal.q_mV is not None
        torch.testing.assert_close(proposal.q_mV.gather(1, candidates).float(), q[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(proposal.q_mV.sum(dim=1), torch.ones(len(candidates), dtype=torch.float64))


@settings(max_examples=25, deadline=None)
@given(
    documents=st.lists(
        st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), max_size=4))),
        min_size=1, max_size=3,
    ).filter(lambda made: any(visible for _, visible in made)),
    rows=st.integers(1, 4), causal=st.booleans(), window=st.none() | st.integers(4, 14),
)  # fmt: skip
def test_blocks_attend_alike(
    documents: list[tuple[int, list[int]]], rows: int, causal: bool, window: int | None
) -> None:
    g, block = random(len(documents)), 4
    spans, context, blocks = [], 0, 0
    for length, seen in documents:
        spans.append(Span(context=(context, context + length), blocks=(blocks, blocks + len(seen))))
        context, blocks = context + length, blocks + len(seen)
    visible = torch.tensor([v for _, seen in documents for v in seen])
    shapes = ((blocks, rows, 4, 8), *[(blocks, block, 2, 8)] * 2, *[(context, 2, 8)] * 2)
    given_ = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
    found = block_attention(*given_, spans=spans, visible_N=visible, rule=Rule(causal=causal, window=window))
    wanted = anchored_block_attention(
        *given_, start_N=starts(spans, device=visible.device), visible_N=visible, causal=causal, window=window
    )
    torch.testing.assert_close(found, wanted.flatten(2), rtol=1e-12, atol=1e-12)
