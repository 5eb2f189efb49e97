"""Speculative decoding of one request: a proposer drafts a chain, the target verifies it in one pass.

Greedy, batch 1. Every round commits ``r + 1`` rows (the anchor and the accepted proposals) and emits
``r + 1`` tokens (the accepted proposals and the target's own next token): METHODS 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from specflow.decoding.records import Generation, Round
from specflow.decoding.verification import verify_greedy_chain
from specflow.drafters.base import Proposer
from specflow.targets.target import Target


def decode_speculative(target: Target, proposer: Proposer, prompt: Sequence[int], *, max_new_tokens: int) -> Generation:
    """Greedy decoding whose tokens equal plain greedy decoding, up to ties within rounding.

    Stops at an end token, which is kept, or after ``max_new_tokens``. Feeding the prompt's features to
    the proposer counts as decoding time but belongs to no round. Raises ``ValueError`` on an empty prompt.
    """
    if not prompt or max_new_tokens < 1:
        raise ValueError(f"a prompt of {len(prompt)} tokens and {max_new_tokens} new ones: expected at least 1 of each")
    layer_ids, ends = proposer.layer_ids, target.end_ids
    capacity = len(prompt) + max_new_tokens + proposer.num_proposals + 1
    begin = perf_counter()
    cache = target.new_cache(1, capacity)
    output = target.forward(torch.tensor([prompt]), cache, layer_ids=layer_ids)
    cache.commit(len(prompt))
    anchor = int(target.head(output.last_hidden_BTH[0, -1]).argmax())
    first = last = perf_counter()
    result = Generation(prompt_length=len(prompt), tokens=[anchor], finish="length", prefill_seconds=first - begin)
    if anchor in ends or max_new_tokens == 1:
        result.finish = "stop" if anchor in ends else "length"
        return result
    proposer.reset(capacity)
    if output.features_BTKH is not None:
        proposer.extend(output.features_BTKH[0])
    ids_1T = torch.empty(1, proposer.num_proposals + 1, dtype=torch.int64)
    while True:
        started = perf_counter()
        draft_m = proposer.propose(anchor)
        drafted = perf_counter()
        ids_1T[0, 0] = anchor
        ids_1T[0, 1:] = draft_m
        output = target.forward(ids_1T, cache, layer_ids=layer_ids)
        accepted, bonus = verify_greedy_chain(target.head(output.last_hidden_BTH[0]), draft_m)
        verified = perf_counter()
        cache.commit(accepted + 1)
        emitted, finish = _cut(
            [*draft_m[:accepted].tolist(), bonus], room=max_new_tokens - len(result.tokens), ends=ends
        )
        result.tokens += emitted
        stated = perf_counter()
        if finish is None and output.features_BTKH is not None:
            proposer.extend(output.features_BTKH[0, : accepted + 1])
        now = perf_counter()
        result.rounds.append(
            Round(
                proposed=len(draft_m),
                accepted=accepted,
                delivered=len(emitted),
                draft_seconds=drafted - started,
                verify_seconds=verified - drafted,
                state_seconds=now - stated,
                other_seconds=(started - last) * bool(result.rounds) + (stated - verified),
            )
        )
        last = now
        if finish is not None:
            result.finish, result.decode_seconds = finish, now - first
            return result
        anchor = bonus


def _cut(tokens: list[int], *, room: int, ends: frozenset[int]) -> tuple[list[int], str | None]:
    """What the user receives of a round's tokens, and how the request ends if it does."""
    for i, token in enumerate(tokens[:room]):
        if token in ends:
            return tokens[: i + 1], "stop"
    return (tokens[:room], "length") if len(tokens) >= room else (tokens, None)
