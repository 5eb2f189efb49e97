"""Speculative decoding of many requests: the outputs of one at a time, whatever the batch, its order and its mix."""

from __future__ import annotations

import pytest
import torch

from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.speculative import decode_speculative, decode_speculative_batch
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.targets.target import Target
from tests.decoding.proposers import NextTokenProposer, ScriptedProposer
from tests.decoding.table_target import TableProposer, TableTarget
from tests.drafters.helpers import geometry

torch.set_num_threads(1)
LIMIT = 24
M = 3


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    texts = ["", "x", "the user", "the user and others", "the", "in", "again", "y" * 40, "again", "on and on"]
    return [[5], [7, 8], *(target.tokenizer.encode(f"<|im_start|>{text}") for text in texts)]


@pytest.fixture(scope="module")
def greedy(target: Target, prompts: list[list[int]]) -> list[list[int]]:
    found = decode_plain(target, prompts, max_new_tokens=LIMIT)
    assert {g.finish for g in found} == {"stop", "length"}
    return [g.tokens for g in found]


def mixed(count: int) -> list[Sampling]:
    kinds = [
        GREEDY,
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=1.2, top_p=0.9, draft_temperature=1.0, seed=2),
        Sampling(frequency_penalty=0.8, repetition_penalty=1.3),
        Sampling(temperature=1.0, top_k=12, min_p=0.02, presence_penalty=0.5, draft_temperature=0.6, seed=3),
    ]
    return [kinds[i % len(kinds)] for i in range(count)]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_greedy_equals_plain_decoding(
    target: Target, prompts: list[list[int]], greedy: list[list[int]], batch_size: int
) -> None:
    proposer, done = NextTokenProposer(target, greedy, num_proposals=M), dict[int, list[int]]()
    found = decode_speculative_batch(
        target,
        proposer,
        prompts,
        max_new_tokens=LIMIT,
        batch_size=batch_size,
        on_done=lambda index, generation: done.setdefault(index, generation.tokens),
    )
    assert [g.tokens for g in found] == greedy == [done[i] for i in range(len(prompts))]
    assert len(proposer.forks) == min(batch_size, len(prompts)) - 1
    accepted = [r.accepted for g in found for r in g.rounds]
    assert 0 in accepted
    assert M in accepted
    for generation, prompt in zip(found, prompts, strict=True):
        assert generation.prompt_length == len(prompt)
        assert generation.finish == ("stop" if generation.tokens[-1] in target.end_ids else "length")
        assert sum(r.delivered for r in generation.rounds) == len(generation.tokens) - 1


def test_mixed_sampling_does_not_depend_on_the_batch(
    target: Target, prompts: list[list[int]], greedy: list[list[int]]
) -> None:
    asked = mixed(len(prompts))
    proposer = NextTokenProposer(target, greedy, num_proposals=M)
    alone = [
        decode_speculative(target, proposer, prompt, max_new_tokens=LIMIT, sampling=sampling)
        for prompt, sampling in zip(prompts, asked, strict=True)
    ]
    expected = [(g.tokens, [(r.accepted, r.delivered) for r in g.rounds]) for g in alone]
    order = list(range(len(prompts)))
    for batch_size, ids in ((4, order), (12, order[::-1])):
        found = decode_speculative_batch(
            target,
            proposer,
            [prompts[i] for i in ids],
            max_new_tokens=LIMIT,
            sampling=[asked[i] for i in ids],
            batch_size=batch_size,
        )
        for i, generation in zip(ids, found, strict=True):
            assert (generation.tokens, [(r.accepted, r.delivered) for r in generation.rounds]) == expected[i]
    # Greedy requests keep plain decoding's tokens beside sampled ones; penalties make greedy another text.
    assert [alone[i].tokens for i in (0, 5, 10)] == [greedy[i] for i in (0, 5, 10)]
    penalised = decode_plain(target, prompts, max_new_tokens=LIMIT, sampling=[asked[3]] * len(prompts))
    assert [alone[i].tokens for i in (3, 8)] == [penalised[i].tokens for i in (3, 8)]
    assert [alone[i].tokens for i in (1, 2, 3, 4)] != [greedy[i] for i in (1, 2, 3, 4)]


def test_seeds_decide(target: Target, prompts: list[list[int]], greedy: list[list[int]]) -> None:
    proposer = NextTokenProposer(target, greedy, num_proposals=M)
    texts = [
        decode_speculative(
            target, proposer, prompts[3], max_new_tokens=12, sampling=Sampling(temperature=1.0, seed=seed)
        ).tokens
        for seed in (1, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3


def test_without_an_accepted_proposal_it_is_plain_sampling() -> None:
    """The target's own draws have the same numbers both ways, so wrong certain proposals leave plain decoding."""
    made = TableTarget(6)
    made.table[..., 5] = float("-inf")  # the target never says 5
    proposer = ScriptedProposer([1, 2], [], num_proposals=2, right=lambda _: 0)
    proposer.propose = lambda anchor: torch.tensor([5, 5])  # type: ignore[method-assign]
    for seed in range(30):
        sampling = Sampling(temperature=1.0, seed=seed)
        plain = decode_plain(made, [[1, 2]], max_new_tokens=6, sampling=[sampling])[0]  # type: ignore[arg-type]
        found = decode_speculative(made, proposer, [1, 2], max_new_tokens=6, sampling=sampling)  # type: ignore[arg-type]
        assert found.tokens == plain.tokens
        assert {r.accepted for r in found.rounds} == {0}


def test_dflash_in_a_batch(target: Target, prompts: list[list[int]]) -> None:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "mask_token_id": 3,
        "layer_ids": [0, 1, 2],
    }
    network = DFlashNetwork(geometry(**sizes))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    proposer = DFlashProposer(network, embed=target.embed, head=target.head)
    asked = mixed(len(prompts))
    runs = [
        decode_speculative_batch(target, proposer, prompts, max_new_tokens=10, sampling=asked, batch_size=batch_size)
        for batch_size in (1, 6)
    ]
    first, second = ([(g.tokens, [r.accepted for r in g.rounds]) for g in run] for run in runs)
    assert first == second


def test_times_of_a_batch_add_up_to_its_own(target: Target, prompts: list[list[int]], greedy: list[list[int]]) -> None:
    proposer = NextTokenProposer(target, greedy, num_proposals=M)
    found = decode_speculative_batch(target, proposer, prompts[:4], max_new_tokens=LIMIT, batch_size=4)
    parts = [(r.draft_seconds, r.verify_seconds, r.state_seconds, r.other_seconds) for g in found for r in g.rounds]
    assert all(part >= 0 for row in parts for part in row)
    assert sum(map(sum, parts)) <= max(g.decode_seconds for g in found)


def test_bad_arguments() -> None:
    made = TableTarget(4)
    proposer = TableProposer(made, num_proposals=2)
    greedy_only = ScriptedProposer([1], [], num_proposals=2, right=lambda _: 0)
    drawn = Sampling(temperature=1.0, draft_temperature=1.0)
    with pytest.raises(ValueError, match="ScriptedProposer cannot draw its proposals"):
        decode_speculative(made, greedy_only, [1], max_new_tokens=2, sampling=drawn)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sampling of 1 requests for 2 prompts"):
        decode_speculative_batch(made, proposer, [[1], [2]], max_new_tokens=2, sampling=[GREEDY])  # type: ignore[arg-type]
    assert decode_speculative_batch(made, proposer, [], max_new_tokens=2) == []  # type: ignore[arg-type]


def test_an_impossible_q_is_refused() -> None:
    from specflow.decoding.chooser import Chooser
    from specflow.decoding.verification import verify_chain
    from specflow.drafters.base import Proposal

    logits, chooser = torch.zeros(2, 3), Chooser(Sampling(temperature=1.0))
    for q in ([0.0, 0.5, 0.5], [0.9, 0.9, 0.9]):
        with pytest.raises(ValueError, match="expected the distribution the token was drawn from"):
            verify_chain(logits, Proposal(tokens_m=torch.tensor([0]), q_mV=torch.tensor([q])), chooser)
