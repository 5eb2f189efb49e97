"""Plain decoding equals transformers' generate, whatever the batch; sampling is seeded per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from specflow.decoding import plain
from specflow.decoding.plain import decode_plain
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.targets.target import Target

LIMIT = 40


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    """Unequal lengths, shared prefixes of many tokens, duplicates, and one prompt that begins another."""
    system = "a system prompt that all of these requests have in common, to be computed once"
    texts = ["", "x", "the user", "the user and others", "the", "in", "again", "y" * 60, "again", "on and on"]
    rows = [target.tokenizer.encode(f"<|im_start|>{system}{text}") for text in texts]
    return [*rows, target.tokenizer.encode("short"), [5], [7, 8]]


@pytest.fixture(scope="module")
def reference(target: Target, prompts: list[list[int]]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(target.path, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        output = model.generate(torch.tensor([prompt]), max_new_tokens=LIMIT, do_sample=False)
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 64])
def test_equals_generate(target: Target, prompts: list[list[int]], reference: list[list[int]], batch_size: int) -> None:
    done: dict[int, Sequence[int]] = {}
    found = decode_plain(
        target,
        prompts,
        max_new_tokens=LIMIT,
        batch_size=batch_size,
        on_done=lambda index, generation: done.setdefault(index, generation.tokens),
    )
    assert [g.tokens for g in found] == reference
    assert [done[i] for i in range(len(prompts))] == reference
    for generation, prompt in zip(found, prompts, strict=True):
        assert generation.prompt_length == len(prompt)
        assert generation.finish == ("stop" if generation.tokens[-1] in target.end_ids else "length")
        assert generation.rounds == []
    assert {g.finish for g in found} == {"stop", "length"}


def test_shared_prefixes_are_computed_once(
    target: Target, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows run in prefill: with sharing, the common prefix is computed for the first prompt only."""
    shared = prompts[:10]
    rows: list[int] = []
    forward = target.forward
    monkeypatch.setattr(target, "forward", lambda ids, cache, **k: rows.append(ids.numel()) or forward(ids, cache, **k))
    decode_plain(target, shared, max_new_tokens=1, batch_size=4)
    with_sharing, common = sum(rows), plain._common(shared[0], shared[1])
    rows.clear()
    monkeypatch.setattr(plain, "MIN_SHARED_PREFIX", 10**6)
    decode_plain(target, shared, max_new_tokens=1, batch_size=4)
    assert sum(rows) == sum(map(len, shared))
    assert common > 30
    assert with_sharing <= sum(rows) - 8 * common


def test_sampling_is_seeded_and_independent_of_the_batch(target: Target, prompts: list[list[int]]) -> None:
    """Mixed with greedy requests and with others in another order, a request keeps its tokens."""
    asked = [
        (GREEDY, Sampling(temperature=0.8, seed=i), Sampling(temperature=1.5, top_k=20, frequency_penalty=0.5, seed=i))[
            i % 3
        ]
        for i in range(len(prompts))
    ]
    alone, together = (
        [g.tokens for g in decode_plain(target, prompts, max_new_tokens=12, sampling=asked, batch_size=size)]
        for size in (1, 5)
    )
    assert alone == together
    greedy = [g.tokens for g in decode_plain(target, prompts, max_new_tokens=12)]
    assert [a == b for a, b in zip(alone, greedy, strict=True)][:6] == [True, False, False] * 2
    backwards = decode_plain(target, prompts[::-1], max_new_tokens=12, sampling=asked[::-1], batch_size=3)
    assert [g.tokens for g in backwards][::-1] == alone
    reseeded = [replace(s, seed=s.seed + 100) for s in asked]
    other = [g.tokens for g in decode_plain(target, prompts, max_new_tokens=12, sampling=reseeded)]
    assert [a == b for a, b in zip(alone, other, strict=True)][:6] == [True, False, False] * 2


def test_bad_arguments(target: Target) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        decode_plain(target, [[1], []], max_new_tokens=1)
    with pytest.raises(ValueError, match="sampling of 1 requests for 2 prompts"):
        decode_plain(target, [[1], [2]], max_new_tokens=1, sampling=[GREEDY])
    assert decode_plain(target, [], max_new_tokens=1) == []
