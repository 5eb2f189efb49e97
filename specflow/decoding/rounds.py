"""The rounds of several requests side by side, in continuous slots: a request that ends makes room for the next.

Tokens of a request do not depend on the other requests except where rounding decides: its random numbers, proposer
and penalties are its own, and its rows of the target's pass differ by about 1e-6 relative.
Legend: B running requests, R = m + 1 rows, K captured layers, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from specflow.decoding.chooser import Chooser, Drafting, choose_tokens
from specflow.decoding.records import Generation, Round
from specflow.decoding.slots import Plan
from specflow.decoding.verification import verify_chains
from specflow.drafters.base import Committed, Proposal, Proposer, Samples, confidence_of
from specflow.targets.base import TargetOutput


@dataclass(slots=True, kw_only=True)
class _Slot:
    request: int
    proposer: Proposer
    chooser: Chooser
    generation: Generation
    first_token_at: float

    def propose(self) -> Proposal:
        """The chain after the last token of the output."""
        anchor, sampling = self.generation.tokens[-1], self.chooser.sampling
        if sampling.draft_temperature == 0.0:
            return Proposal(tokens_m=self.proposer.propose(anchor))
        assert isinstance(self.proposer, Samples)  # checked before any request began
        return self.proposer.sample(anchor, Drafting(self.chooser))


class Rounds:
    """Slots ``0 .. active`` are running; the cache's rows behind them are free."""

    def __init__(self, plan: Plan, proposer: Proposer, *, width: int, longest: int) -> None:
        self.plan, self.width = plan, width
        self._room = plan.max_new_tokens + proposer.num_proposals + 1
        self._layer_ids = proposer.layer_ids
        self._free = [proposer, *(proposer.fork() for _ in range(width - 1))][::-1]
        self._cache = plan.target.new_cache(width, longest + self._room)
        self._running = self._cache
        self._slots: list[_Slot] = []
        self._ended = 0.0

    @property
    def active(self) -> int:
        return len(self._slots)

    def admit(self, request: int, prompt: list[int]) -> None:
        """Prefill ``prompt`` into the first free row and emit its first token."""
        plan, row, begin = self.plan, self.active, perf_counter()
        if int(self._cache.committed_B[row]):
            self._cache.rewind(row, 0)
        view = self._cache.rows(row, 1)
        output = plan.target.forward(torch.tensor([prompt]), view, layer_ids=self._layer_ids)
        view.commit(len(prompt))
        chooser = Chooser(plan.sampling[request])
        first = choose_tokens(plan.target.head(output.last_hidden_BTH[:, -1]), [chooser])
        now = perf_counter()
        generation = Generation(prompt_length=len(prompt), tokens=[], finish="length", prefill_seconds=now - begin)
        slot = _Slot(
            request=request,
            proposer=self._free.pop(),
            chooser=chooser,
            generation=generation,
            first_token_at=now,
        )
        self._slots.append(slot)
        if self._emit(slot, first)[1]:
            self._release(row)
            return
        slot.proposer.reset(len(prompt) + self._room)
        slot.proposer.extend(_committed(output, 0, [*prompt[1:], *first]))

    def step(self) -> None:
        """One round of every running request."""
        plan, count, started = self.plan, self.active, perf_counter()
        proposals, drafts, confidences = [], [], []
        for slot in self._slots:
            begin = perf_counter()
            proposals.append(slot.propose())
            confidences.append(_numbers(confidence_of(slot.proposer)))
            drafts.append(perf_counter() - begin)
        drafted = perf_counter()
        if self._running.batch != count:
            self._running = self._cache.rows(0, count)
        anchors_B1 = torch.tensor([[slot.generation.tokens[-1]] for slot in self._slots])
        ids_BR = torch.cat((anchors_B1, torch.stack([p.tokens_m for p in proposals])), dim=1)
        output = plan.target.forward(ids_BR, self._running, layer_ids=self._layer_ids)
        logits_BRV = plan.target.head(output.last_hidden_BTH)
        verdicts = verify_chains(logits_BRV, proposals, [slot.chooser for slot in self._slots])
        verified = before = perf_counter()
        self._running.commit([accepted + 1 for accepted, _ in verdicts])
        for row in reversed(range(count)):  # a slot that ends is filled by the last one, which is done already
            slot, (accepted, bonus) = self._slots[row], verdicts[row]
            draft_m = proposals[row].tokens_m
            delivered, finished = self._emit(slot, [*draft_m[:accepted].tolist(), bonus])
            stated = perf_counter()
            if not finished:
                slot.proposer.extend(_committed(output, row, slot.generation.tokens[-accepted - 1 :]))
            now = perf_counter()
            idle = (started - self._ended) / count if slot.generation.rounds else 0.0
            slot.generation.rounds.append(
                Round(
                    proposed=len(draft_m),
                    accepted=accepted,
                    delivered=delivered,
                    draft_seconds=drafts[row],
                    verify_seconds=(verified - drafted) / count,
                    state_seconds=now - stated,
                    other_seconds=idle + (stated - before),
                    confidence=confidences[row],
                )
            )
            before = now
            if finished:
                slot.generation.decode_seconds = now - slot.first_token_at
                self._release(row)
        self._ended = before

    def _emit(self, slot: _Slot, tokens: list[int]) -> tuple[int, bool]:
        """Deliver what the user receives of ``tokens``; how many, and whether the request ends."""
        result, plan = slot.generation, self.plan
        emitted, finish = _cut(tokens, room=plan.max_new_tokens - len(result.tokens), ends=plan.target.end_ids)
        result.tokens += emitted
        slot.chooser.emit(emitted)
        if finish is not None:
            result.finish = finish
        return len(emitted), finish is not None

    def _release(self, row: int) -> None:
        """Close the gap with the last running slot, so that the running ones stay one slice of the cache."""
        last, done = self.active - 1, self._slots[row]
        moved = self._slots.pop()
        if row != last:
            self._cache.copy(source=last, destination=row, length=int(self._cache.committed_B[last]))
            self._slots[row] = moved
        self._free.append(done.proposer)
        self.plan.finish(done.request, done.generation)


def _numbers(values_m: Tensor | None) -> tuple[float, ...] | None:
    return None if values_m is None else tuple(values_m.tolist())


def _committed(output: TargetOutput, row: int, next_ids: list[int]) -> Committed:
    """The first rows of a request's pass, with the token after each."""
    count, hidden_BTH = len(next_ids), output.last_hidden_BTH
    features_BTKH = hidden_BTH.unsqueeze(2)[:, :, :0] if output.features_BTKH is None else output.features_BTKH
    return Committed(
        features_TKH=features_BTKH[row, :count],
        next_ids_T=torch.tensor(next_ids),
        last_hidden_TH=hidden_BTH[row, :count],
    )


def _cut(tokens: list[int], *, room: int, ends: frozenset[int]) -> tuple[list[int], str | None]:
    """What the user receives of a round's tokens, and how the request ends if it does."""
    for i, token in enumerate(tokens[:room]):
        if token in ends:
            return tokens[: i + 1], "stop"
    return (tokens[:room], "length") if len(tokens) >= room else (tokens, None)
