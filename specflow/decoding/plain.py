"""Plain decoding of many prompts by the target alone, in continuous slots.

A slot whose request ends takes the next prompt at once, so the batch stays full while prompts wait.
A prompt that begins like one whose keys and values are still in a slot copies that prefix instead of
computing it. Tokens of a request do not depend on the other requests except where two logits lie
within fp32 rounding (about 1e-6 relative): kernels add in an order that depends on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from specflow.decoding.chooser import Chooser, choose_tokens
from specflow.decoding.records import Generation
from specflow.decoding.sampling import Sampling
from specflow.decoding.slots import Plan, run, sampling_of_each
from specflow.targets.target import Target

MIN_SHARED_PREFIX = 16
"""Tokens in common from which copying beats computing."""


@dataclass(slots=True, kw_only=True)
class _Slot:
    """One row of the batch: the request it serves and the prompt whose keys it holds."""

    request: int
    prompt: list[int]
    generation: Generation
    chooser: Chooser
    first_token_at: float


def decode_plain(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sequence[Sampling] | None = None,
    batch_size: int = 1,
    on_done: Callable[[int, Generation], None] | None = None,
) -> list[Generation]:
    """Decode every prompt up to an end token, which is kept, or ``max_new_tokens``; results in prompt order.

    ``sampling``: one per prompt, none: all greedy. ``on_done(index, generation)`` is called as requests finish.
    Raises ``ValueError`` on empty prompts or another number of samplings.
    """
    if any(not prompt for prompt in prompts) or max_new_tokens < 1 or batch_size < 1:
        raise ValueError("expected prompts of at least one token, max_new_tokens >= 1 and batch_size >= 1")
    asked = sampling_of_each(sampling, requests=len(prompts))
    if not prompts:
        return []
    plan = Plan(target=target, max_new_tokens=max_new_tokens, sampling=asked, on_done=on_done)
    run(_Batch(plan, width=min(batch_size, len(prompts)), longest=max(map(len, prompts))), prompts)
    return [plan.results[i] for i in range(len(prompts))]


class _Batch:
    """Slots ``0 .. active`` are running; the cache rows behind them are free but may hold a reusable prefix."""

    def __init__(self, plan: Plan, *, width: int, longest: int) -> None:
        self.plan, self.width = plan, width
        self.cache = plan.target.new_cache(width, longest + plan.max_new_tokens)
        self.slots: list[_Slot] = []
        self.held: list[list[int]] = [[] for _ in range(width)]
        self._running = self.cache

    @property
    def active(self) -> int:
        return len(self.slots)

    def admit(self, request: int, prompt: list[int]) -> None:
        """Prefill ``prompt`` into the first free row and emit its first token."""
        plan, row, begin = self.plan, self.active, perf_counter()
        shared = self._share_prefix(prompt, row)
        view = self.cache.rows(row, 1)
        hidden_1TH = plan.target.forward(torch.tensor([prompt[shared:]]), view).last_hidden_BTH
        view.commit(len(prompt) - shared)
        self.held[row] = prompt
        chooser = Chooser(plan.sampling[request])
        tokens = choose_tokens(plan.target.head(hidden_1TH[:, -1]), [chooser])
        now = perf_counter()
        generation = Generation(prompt_length=len(prompt), tokens=[], finish="length", prefill_seconds=now - begin)
        self.slots.append(
            _Slot(request=request, prompt=prompt, generation=generation, chooser=chooser, first_token_at=now)
        )
        self._emit(row, tokens[0], now)

    def step(self) -> None:
        """One token for every running slot."""
        plan, count = self.plan, self.active
        if self._running.batch != count:
            self._running = self.cache.rows(0, count)
        ids_B1 = torch.tensor([[slot.generation.tokens[-1]] for slot in self.slots])
        hidden_B1H = plan.target.forward(ids_B1, self._running).last_hidden_BTH
        self._running.commit(1)
        tokens = choose_tokens(plan.target.head(hidden_B1H[:, 0]), [slot.chooser for slot in self.slots])
        now = perf_counter()
        for row in reversed(range(count)):  # a slot that ends is filled by the last one, which is done already
            self._emit(row, tokens[row], now)

    def _emit(self, row: int, token: int, now: float) -> None:
        slot, plan = self.slots[row], self.plan
        result = slot.generation
        result.tokens.append(token)
        slot.chooser.emit([token])
        stopped = token in plan.target.end_ids
        if not stopped and len(result.tokens) < plan.max_new_tokens:
            return
        result.finish = "stop" if stopped else "length"
        result.decode_seconds = now - slot.first_token_at
        self._release(row)
        plan.finish(slot.request, result)

    def _release(self, row: int) -> None:
        """Close the gap with the last running slot, so that the running ones stay one slice of the cache."""
        last = self.active - 1
        moved = self.slots.pop()
        if row != last:
            self.cache.copy(source=last, destination=row, length=int(self.cache.committed_B[last]))
            self.slots[row], self.held[row] = moved, self.held[last]

    def _share_prefix(self, prompt: list[int], row: int) -> int:
        """Give ``row`` the longest prefix of ``prompt`` that some row holds; returns its length."""
        lengths = [_common(prompt, held) for held in self.held]
        best = max(range(self.width), key=lambda i: (lengths[i], i == row))
        length = min(lengths[best], len(prompt) - 1)  # the last row must run: its logits give the first token
        if length < MIN_SHARED_PREFIX:
            length = 0
        if best == row or length == 0:
            self.cache.rewind(row, length)
        else:
            self.cache.copy(source=best, destination=row, length=length)
        return length


def _common(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
