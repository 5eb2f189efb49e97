"""Continuous slots, as plain and speculative decoding fill them: a request that ends makes room for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specflow.decoding.records import Generation
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.targets.target import Target


@dataclass(slots=True, kw_only=True)
class Plan:
    """What all requests of a call have in common."""

    target: Target
    max_new_tokens: int
    sampling: Sequence[Sampling]
    """One per request."""
    on_done: Callable[[int, Generation], None] | None
    results: dict[int, Generation] = field(default_factory=dict)

    def finish(self, request: int, generation: Generation) -> None:
        self.results[request] = generation
        if self.on_done is not None:
            self.on_done(request, generation)


class Batch(Protocol):
    """Slots ``0 .. active`` are running; ``step`` ends those that are done."""

    width: int

    @property
    def active(self) -> int: ...
    def admit(self, request: int, prompt: list[int]) -> None: ...
    def step(self) -> None: ...


def sampling_of_each(sampling: Sequence[Sampling] | None, *, requests: int) -> Sequence[Sampling]:
    """One per request, greedy where none is given; raises ``ValueError`` on another number."""
    asked = [GREEDY] * requests if sampling is None else sampling
    if len(asked) != requests:
        raise ValueError(f"sampling of {len(asked)} requests for {requests} prompts: expected one of each")
    return asked


def run(batch: Batch, prompts: Sequence[Sequence[int]]) -> None:
    """Until every prompt has been admitted and has ended."""
    # Neighbours of similar length waste the least of a pass; the longest first keep its end cheap.
    waiting = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), -i))
    while waiting or batch.active:
        while waiting and batch.active < batch.width:
            request = waiting.pop()
            batch.admit(request, list(prompts[request]))
        if batch.active:
            batch.step()
