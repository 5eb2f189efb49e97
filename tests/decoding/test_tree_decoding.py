"""Greedy decoding with trees equals plain decoding, for many shapes, batches and drafters."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specflow.decoding.metrics import acceptance
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.speculative import decode_speculative, decode_speculative_batch
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Committed, Expands
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.targets.target import Target
from tests.decoding.proposers import NextTokenProposer
from tests.drafters.helpers import geometry

torch.set_num_threads(1)
LIMIT = 24
SHAPES = [(1, 4, 5), (2, 2, 4), (3, 3, 10), (4, 2, 12), (5, 8, 33), (3, 1, 4), (6, 4, 3)]


class GuessingProposer:
    """The token that followed in known texts is among its likeliest, rarely the likeliest; a state of its own.

    Checks what it is fed: the features and hidden states that the target gives for the committed text.
    """

    num_proposals, layer_ids = 2, (0, 2)

    def __init__(self, target: Target, texts: Sequence[Sequence[int]]) -> None:
        self._target = target
        self._after = {a: b for text in texts for a, b in itertools.pairwise(text)}
        self.reset(0)

    def fork(self) -> GuessingProposer:
        other = copy.copy(self)
        other.reset(0)
        return other

    def reset(self, capacity: int) -> None:
        self.text: list[int] = []
        self.fed: list[Committed] = []

    def extend(self, rows: Committed) -> None:
        self.text += rows.next_ids_T.tolist()
        self.fed.append(rows)

    def propose(self, anchor: int) -> Tensor:
        raise AssertionError("a tree was asked for")

    def begin_tree(self, anchor: int) -> Tensor:
        assert self.text[-1] == anchor
        return self._log_q(anchor)

    def expand(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        return torch.stack([self._log_q(token) for token in tokens_b.tolist()])

    def _log_q(self, token: int) -> Tensor:
        noise = torch.randn(self._target.vocab_size, generator=torch.Generator().manual_seed(token))
        noise[self._after.get(token, 0)] += 2.5
        return noise.log_softmax(dim=0)


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    texts = ["", "x", "the user", "the user and others", "on and on", "y" * 30]
    return [[5], *(target.tokenizer.encode(f"<|im_start|>{text}") for text in texts)]


@pytest.fixture(scope="module")
def greedy(target: Target, prompts: list[list[int]]) -> list[list[int]]:
    return [g.tokens for g in decode_plain(target, prompts, max_new_tokens=LIMIT)]


@pytest.mark.parametrize("sizes", SHAPES)
def test_greedy_equals_plain_decoding(
    target: Target, prompts: list[list[int]], greedy: list[list[int]], sizes: tuple[int, int, int]
) -> None:
    shape = TreeShape(steps=sizes[0], topk=sizes[1], num_draft_tokens=sizes[2])
    proposer = GuessingProposer(target, greedy)
    for batch_size in (1, 4):
        found = decode_speculative_batch(
            target, proposer, prompts, max_new_tokens=LIMIT, batch_size=batch_size, tree=shape
        )
        assert [g.tokens for g in found] == greedy
        for generation in found:
            assert sum(r.delivered for r in generation.rounds) == len(generation.tokens) - 1
            assert all(r.accepted <= r.proposed <= shape.steps for r in generation.rounds)
            assert all(r.proposed <= r.tree_nodes <= shape.num_draft_tokens - 1 for r in generation.rounds)
    assert any(r.accepted for g in found for r in g.rounds)
    if shape.topk > 1:
        chain = TreeShape(steps=shape.steps, topk=1, num_draft_tokens=shape.steps + 1)
        chains = decode_speculative_batch(target, proposer, prompts, max_new_tokens=LIMIT, tree=chain)
        first = [acceptance(run).cumulative[0].value or 0.0 for run in (found, chains)]
        assert first[0] >= first[1], "the likeliest token is in both"


def test_the_drafter_is_fed_what_the_committed_text_gives(
    target: Target, prompts: list[list[int]], greedy: list[list[int]]
) -> None:
    """Features and last hidden states of an accepted path, which lies apart in the pass."""
    proposer = GuessingProposer(target, greedy)
    shape = TreeShape(steps=4, topk=4, num_draft_tokens=24)
    found = decode_speculative(target, proposer, prompts[3], max_new_tokens=LIMIT, tree=shape)
    assert {r.accepted for r in found.rounds} >= {0, 1, 2}
    text = [*prompts[3], *found.tokens]
    assert proposer.text == text[1 : len(proposer.text) + 1]
    whole = target.forward(torch.tensor([text]), target.new_cache(1, len(text)), layer_ids=(0, 2))
    rows = len(proposer.text)
    assert whole.features_BTKH is not None
    features = torch.cat([fed.features_TKH for fed in proposer.fed])
    hidden = torch.cat([fed.last_hidden_TH for fed in proposer.fed if fed.last_hidden_TH is not None])
    torch.testing.assert_close(features, whole.features_BTKH[0, :rows], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hidden, whole.last_hidden_BTH[0, :rows], rtol=1e-4, atol=1e-4)


def dflash(target: Target) -> DFlashProposer:
    torch.manual_seed(0)
    sizes = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size, "mask_token_id": 3}
    network = DFlashNetwork(geometry(**sizes, layer_ids=[0, 1, 2]))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return DFlashProposer(network, embed=target.embed, head=target.head)


def test_dflash_drafts_trees_from_one_pass(target: Target, prompts: list[list[int]], greedy: list[list[int]]) -> None:
    proposer = dflash(target)
    assert isinstance(proposer, Expands)
    shape = TreeShape(steps=proposer.num_proposals + 2, topk=3, num_draft_tokens=20)
    found = decode_speculative_batch(target, proposer, prompts, max_new_tokens=LIMIT, batch_size=3, tree=shape)
    assert [g.tokens for g in found] == greedy
    assert max(r.proposed for g in found for r in g.rounds) <= proposer.num_proposals
    # Its likeliest path is its chain.
    chain = TreeShape(steps=proposer.num_proposals, topk=1, num_draft_tokens=proposer.num_proposals + 1)
    runs = [
        decode_speculative_batch(target, proposer, prompts, max_new_tokens=LIMIT, tree=tree) for tree in (None, chain)
    ]
    first, second = ([[r.accepted for r in g.rounds] for g in run] for run in runs)
    assert first == second


def test_a_mixed_batch_with_a_real_target(target: Target, prompts: list[list[int]], greedy: list[list[int]]) -> None:
    kinds = [GREEDY, Sampling(temperature=0.8, top_p=0.9, seed=4), Sampling(temperature=1.0, draft_temperature=1.0)]
    asked = [kinds[i % 3] for i in range(len(prompts))]
    proposer, shape = dflash(target), TreeShape(steps=3, topk=3, num_draft_tokens=12)
    alone, together = (
        decode_speculative_batch(
            target, proposer, prompts, max_new_tokens=12, sampling=asked, batch_size=size, tree=shape
        )
        for size in (1, 7)
    )
    assert [g.tokens for g in alone] == [g.tokens for g in together]
    assert [alone[i].tokens for i in (0, 3, 6)] == [greedy[i][:12] for i in (0, 3, 6)]


def test_a_proposer_of_chains_is_refused(target: Target) -> None:
    proposer = NextTokenProposer(target, [], num_proposals=2)
    with pytest.raises(ValueError, match="NextTokenProposer proposes chains only"):
        decode_speculative(target, proposer, [1], max_new_tokens=2, tree=TreeShape(steps=1, topk=2, num_draft_tokens=3))
