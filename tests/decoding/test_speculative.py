"""Greedy equality and exact round counts for perfect, hopeless and mixed proposers (METHODS 9.5)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from specflow.decoding.metrics import acceptance
from specflow.decoding.plain import decode_plain
from specflow.decoding.speculative import decode_speculative
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from tests.decoding.proposers import ScriptedProposer

M = 4
LIMIT = 41


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(make_tiny_target(tmp_path_factory.mktemp("tiny"), 0), threads=1)


def prompts_of(target: Target, count: int) -> list[list[int]]:
    words = ["the user and I", "What is this?", "one", "a list of tokens", "Zürich", "or else", "again", "in the end"]
    return [
        target.tokenizer.apply_chat_template(
            [{"role": "user", "content": word}], add_generation_prompt=True, return_dict=False
        )
        for word in words[:count]
    ]


@pytest.fixture(scope="module")
def truths(target: Target) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, plain tokens, and a continuation beyond them that a proposer may know."""
    prompts = prompts_of(target, 8)
    plain = decode_plain(target, prompts, max_new_tokens=LIMIT)
    longer = decode_plain(target, prompts, max_new_tokens=LIMIT + 10)
    assert {g.finish for g in plain} == {"stop", "length"}, "the prompts must cover both ways to end"
    return [(p, a.tokens, b.tokens) for p, a, b in zip(prompts, plain, longer, strict=True)]


def expected_rounds(tokens: list[int], right: list[int]) -> list[tuple[int, int]]:
    """(accepted, delivered) per round, from the definition: the text after the first token is cut into rounds."""
    rounds, left = [], len(tokens) - 1
    for accepted in right:
        if left == 0:
            break
        delivered = min(accepted + 1, left)
        rounds.append((accepted, delivered))
        left -= delivered
    return rounds


@pytest.mark.parametrize("limit", [1, 2, 5, 6, LIMIT])
def test_perfect_proposals(target: Target, truths: list[tuple[list[int], list[int], list[int]]], limit: int) -> None:
    for prompt, tokens, longer in truths:
        proposer = ScriptedProposer(prompt, longer, num_proposals=M, right=lambda _: M)
        found = decode_speculative(target, proposer, prompt, max_new_tokens=limit)
        assert found.tokens == tokens[:limit]
        assert found.finish == ("stop" if found.tokens[-1] in target.end_ids else "length")
        full, rest = divmod(len(found.tokens) - 1, M + 1)
        assert [r.delivered for r in found.rounds] == [M + 1] * full + [rest] * (rest > 0)
        for r in found.rounds[:full]:
            assert (r.proposed, r.accepted) == (M, M)


def test_tau_of_perfect_proposals_is_m_plus_1(target: Target) -> None:
    prompt = prompts_of(target, 1)[0]
    truth = decode_plain(target, [prompt], max_new_tokens=60)[0].tokens
    limit = 1 + (len(truth) - 1) // (M + 1) * (M + 1)
    proposer = ScriptedProposer(prompt, truth, num_proposals=M, right=lambda _: M)
    found = decode_speculative(target, proposer, prompt, max_new_tokens=limit)
    assert acceptance([found]).tau.value == M + 1
    assert [ratio.value for ratio in acceptance([found]).conditional] == [1.0] * M


def test_hopeless_proposals(target: Target, truths: list[tuple[list[int], list[int], list[int]]]) -> None:
    for prompt, tokens, longer in truths:
        proposer = ScriptedProposer(prompt, longer, num_proposals=M, right=lambda _: 0)
        found = decode_speculative(target, proposer, prompt, max_new_tokens=LIMIT)
        assert found.tokens == tokens
        assert [(r.accepted, r.delivered) for r in found.rounds] == [(0, 1)] * (len(tokens) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_mixed_proposals(target: Target, truths: list[tuple[list[int], list[int], list[int]]], seed: int) -> None:
    draw = random.Random(seed)
    for prompt, tokens, longer in truths:
        right = [draw.randint(0, M) for _ in range(LIMIT)]
        proposer = ScriptedProposer(prompt, longer, num_proposals=M, right=right.__getitem__)
        found = decode_speculative(target, proposer, prompt, max_new_tokens=LIMIT)
        assert found.tokens == tokens
        # The proposer knows nothing behind an end token, so what the last round accepts is not asserted.
        expected = expected_rounds(tokens, right)
        assert [r.delivered for r in found.rounds] == [delivered for _, delivered in expected]
        assert [r.accepted for r in found.rounds[:-1]] == [accepted for accepted, _ in expected[:-1]]


def test_proposer_gets_the_features_of_committed_rows(target: Target) -> None:
    """After a mix of rejections the features equal those of one pass over the final text."""
    prompt = prompts_of(target, 1)[0]
    truth = decode_plain(target, [prompt], max_new_tokens=50)[0].tokens
    proposer = ScriptedProposer(prompt, truth, num_proposals=M, right=lambda r: (1, 0, 3, 4, 2)[r % 5])
    found = decode_speculative(target, proposer, prompt, max_new_tokens=30)
    fed = torch.cat(proposer.features)
    text = torch.tensor([[*prompt, *found.tokens]])[:, : len(fed)]
    expected = target.forward(text, target.new_cache(1, len(fed)), layer_ids=(0, 2)).features_BTKH
    assert expected is not None
    assert len(fed) > len(prompt) + 15
    torch.testing.assert_close(fed, expected[0], rtol=1e-4, atol=1e-4)


def test_times_add_up(target: Target, truths: list[tuple[list[int], list[int], list[int]]]) -> None:
    prompt, _, longer = truths[0]
    proposer = ScriptedProposer(prompt, longer, num_proposals=M, right=lambda _: 1)
    found = decode_speculative(target, proposer, prompt, max_new_tokens=LIMIT)
    parts = [(r.draft_seconds, r.verify_seconds, r.state_seconds, r.other_seconds) for r in found.rounds]
    assert all(part >= 0 for row in parts for part in row)
    total = sum(map(sum, parts))
    assert 0 < total <= found.decode_seconds
    assert found.prefill_seconds > 0


def test_end_token_as_first_token(target: Target, truths: list[tuple[list[int], list[int], list[int]]]) -> None:
    prompt, tokens, _ = truths[0]
    proposer = ScriptedProposer(prompt, tokens, num_proposals=M, right=lambda _: M)
    ends, target.end_ids = target.end_ids, frozenset({tokens[0]})
    try:
        found = decode_speculative(target, proposer, prompt, max_new_tokens=9)
    finally:
        target.end_ids = ends
    assert (found.tokens, found.finish, found.rounds) == (tokens[:1], "stop", [])


def test_acceptance_sums() -> None:
    from specflow.decoding.records import Generation, Round

    rounds = [Round(proposed=3, accepted=a, delivered=d) for a, d in ((3, 4), (1, 2), (0, 1), (3, 2))]
    found = acceptance([Generation(prompt_length=1, tokens=[0], finish="stop", rounds=rounds)])
    assert (found.tau.total, found.tau.count) == (9, 4)
    assert [(r.total, r.count) for r in found.cumulative] == [(3, 4), (2, 4), (2, 4)]
    assert [(r.total, r.count) for r in found.conditional] == [(3, 4), (2, 3), (2, 2)]
    assert acceptance([]).tau.value is None
    assert replace(rounds[0], accepted=2).accepted == 2


def test_bad_arguments(target: Target) -> None:
    proposer = ScriptedProposer([1], [], num_proposals=M, right=lambda _: 0)
    for prompt, limit in (([], 5), ([1], 0)):
        with pytest.raises(ValueError, match="expected at least 1 of each"):
            decode_speculative(target, proposer, prompt, max_new_tokens=limit)
