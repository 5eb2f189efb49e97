"""The rounds of several requests side by side, in continuous slots: a request that ends makes room for the next.

Tokens of a request do not depend on the other requests except where rounding decides: its random numbers, proposer
and penalties are its own, and its rows of the target's pass differ by about 1e-6 relative.
Rounds are chains of the same length, or, with a tree's shape, a tree for every request whose proposals are not drawn.
With a schedule only some requests draft, and each has as many rows of the pass as it was granted.
Legend: B running requests, R rows (m + 1, or the largest tree's), K captured layers, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from specflow.decoding.chooser import Chooser, Drafting, choose_tokens
from specflow.decoding.drafting import look_ahead
from specflow.decoding.drafts import Draft, longest_path, rows_of, tokens_of, verify_drafts
from specflow.decoding.feeding import Fed
from specflow.decoding.granted import NOTHING, first_of, verify_granted
from specflow.decoding.records import Generation, Round
from specflow.decoding.slots import Plan
from specflow.decoding.trees import Tree, TreeShape, draft_tree
from specflow.drafters.base import Committed, Expands, Proposal, Proposer, Samples, confidence_of
from specflow.scheduling.scheduler import Schedule
from specflow.targets.base import TargetOutput


@dataclass(slots=True, kw_only=True)
class _Slot:
    request: int
    proposer: Proposer
    chooser: Chooser
    generation: Generation
    first_token_at: float
    fed: Fed

    @property
    def anchor(self) -> int:
        """The last token of the output."""
        return self.generation.tokens[-1]

    def chain(self) -> Proposal:
        if self.chooser.sampling.draft_temperature == 0.0:
            return Proposal(tokens_m=self.proposer.propose(self.anchor))
        assert isinstance(self.proposer, Samples)  # checked before any request began
        return self.proposer.sample(self.anchor, Drafting(self.chooser))

    def tree(self, shape: TreeShape) -> Draft:
        """A tree of the likeliest proposals; a chain where the request's proposals are drawn."""
        if self.chooser.sampling.draft_temperature:
            return self.chain()
        assert isinstance(self.proposer, Expands)  # checked before any request began
        return draft_tree(self.proposer, self.anchor, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """What the target said to one request's draft."""

    output: TargetOutput
    request: int
    """Its place in ``output``."""
    rows: list[int] | slice
    """Of the pass, now committed: the anchor's and the accepted proposals'."""
    accepted: list[int]
    """Tokens."""
    next: int


class Rounds:
    """Slots ``0 .. active`` are running; the cache's rows behind them are free."""

    def __init__(
        self,
        plan: Plan,
        proposer: Proposer,
        *,
        width: int,
        longest: int,
        tree: TreeShape | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.plan, self.width, self._tree, self._schedule = plan, width, tree, schedule
        drafted = max(proposer.num_proposals, *((tree.num_draft_tokens, tree.expanded) if tree else ()), 0)
        self._room = plan.max_new_tokens + drafted + 1
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
        proposer = self._free.pop()
        slot = _Slot(
            request=request,
            proposer=proposer,
            chooser=chooser,
            generation=generation,
            first_token_at=now,
            fed=Fed(proposer, at_once=self._schedule is None),
        )
        self._slots.append(slot)
        if self._emit(slot, first)[1]:
            self._release(row)
            return
        slot.proposer.reset(len(prompt) + self._room)
        slot.fed.add(_committed(output, 0, slice(0, len(prompt)), [*prompt[1:], *first]))

    def step(self) -> None:
        """One round of every running request."""
        count, started = self.active, perf_counter()
        drafts: list[Draft] = []
        seconds, confidences = [], []
        numbers = [slot.request for slot in self._slots]
        wanted = [True] * count if self._schedule is None else self._schedule.drafters(numbers)
        if self._schedule is not None and not any(wanted):
            self._silent_step(numbers, self._schedule, started)
            return
        idle = (perf_counter() - started) / count
        shared = self._look_ahead(wanted)
        for slot, drafting in zip(self._slots, wanted, strict=True):
            begin = perf_counter()
            drafts.append(self._draft(slot) if drafting else NOTHING)
            confidences.append(_numbers(confidence_of(slot.proposer)) if drafting else None)
            seconds.append(perf_counter() - begin + (shared if drafting else 0.0))
        proposed, planning = [longest_path(draft) for draft in drafts], perf_counter()
        drafts = self._granted(numbers, drafts, confidences, wanted)
        drafted = perf_counter()
        idle += (drafted - planning) / count
        self._run_slots()
        verdicts = self._verify(drafts)
        verified = before = perf_counter()
        for row in reversed(range(count)):  # a slot that ends is filled by the last one, which is done already
            slot, verdict, draft = self._slots[row], verdicts[row], drafts[row]
            delivered, finished = self._emit(slot, [*verdict.accepted, verdict.next])
            stated = perf_counter()
            if not finished:
                following = slot.generation.tokens[-len(verdict.accepted) - 1 :]
                slot.fed.add(_committed(verdict.output, verdict.request, verdict.rows, following))
            now = perf_counter()
            between = (started - self._ended) / count if slot.generation.rounds else 0.0
            slot.generation.rounds.append(
                Round(
                    proposed=proposed[row],
                    verified=None if self._schedule is None else longest_path(draft),
                    accepted=len(verdict.accepted),
                    delivered=delivered,
                    tree_nodes=len(draft.tokens) if isinstance(draft, Tree) else 0,
                    draft_seconds=seconds[row],
                    verify_seconds=(verified - drafted) / count,
                    state_seconds=now - stated,
                    other_seconds=between + idle + (stated - before),
                    schedule_seconds=0.0 if self._schedule is None else idle,
                    confidence=confidences[row],
                )
            )
            before = now
            if finished:
                slot.generation.decode_seconds = now - slot.first_token_at
                self._release(row)
        self._ended = before

    def _silent_step(self, numbers: list[int], schedule: Schedule, started: float) -> None:
        """A round in which nobody drafts: a step of plain decoding, with the rows kept for those who draft later."""
        count, target = self.active, self.plan.target
        schedule.silent(numbers)
        idle = perf_counter() - started
        self._run_slots()
        anchors = torch.tensor([[slot.anchor] for slot in self._slots])
        output = target.forward(anchors, self._running, layer_ids=self._layer_ids)
        self._running.commit(1)
        tokens = choose_tokens(target.head(output.last_hidden_BTH[:, 0]), [slot.chooser for slot in self._slots])
        verified = perf_counter()
        finished = []
        for row, (slot, token) in enumerate(zip(self._slots, tokens, strict=True)):
            if self._emit(slot, [token])[1]:
                finished.append(row)
            else:
                slot.fed.add_single(output, row, token)
        now = perf_counter()
        verifying, beside = (verified - started - idle) / count, (idle + now - verified) / count
        for slot in self._slots:
            rounds = slot.generation.rounds
            between = (started - self._ended) / count if rounds else 0.0
            rounds.append(
                Round(
                    proposed=0,
                    verified=0,
                    accepted=0,
                    delivered=1,
                    verify_seconds=verifying,
                    other_seconds=between + beside,
                    schedule_seconds=idle / count,
                )
            )
        for row in reversed(finished):  # a slot that ends is filled by the last one, which is done already
            generation = self._slots[row].generation
            generation.decode_seconds = now - self._slots[row].first_token_at
            self._release(row)
        self._ended = now

    def _run_slots(self) -> None:
        """The next pass is of the running slots."""
        if self._running.batch != self.active:
            self._running = self._cache.rows(0, self.active)

    def _look_ahead(self, wanted: list[bool]) -> float:
        """What the requests that draft can share is computed together; seconds for each of them."""
        drafting = [slot for slot, draws in zip(self._slots, wanted, strict=True) if draws]
        if len(drafting) < 2:
            return 0.0
        begin = perf_counter()
        for slot in drafting:
            slot.fed.catch_up()
        caught_up = (perf_counter() - begin) / len(drafting)
        return caught_up + look_ahead([slot.proposer for slot in drafting], [slot.anchor for slot in drafting])

    def _draft(self, slot: _Slot) -> Draft:
        slot.fed.catch_up()
        return slot.chain() if self._tree is None else slot.tree(self._tree)

    def _granted(
        self,
        numbers: list[int],
        drafts: list[Draft],
        confidences: list[tuple[float, ...] | None],
        wanted: list[bool],
    ) -> list[Draft]:
        """What is verified of the drafts: everything, without a schedule."""
        if self._schedule is None:
            return drafts
        if any(drafting and own is None for drafting, own in zip(wanted, confidences, strict=True)):
            raise ValueError("a scheduler needs the drafter's confidence, and this one has none: leave it out")
        rows = self._schedule.rows(numbers, confidences)
        chains = [draft for draft in drafts if isinstance(draft, Proposal)]
        return [first_of(chain, count - 1) for chain, count in zip(chains, rows, strict=True)]

    def _verify(self, drafts: list[Draft]) -> list[_Verdict]:
        """One pass of the target over all drafts; commits what it accepts."""
        target, choosers = self.plan.target, [slot.chooser for slot in self._slots]
        anchors = [slot.anchor for slot in self._slots]
        if self._tree is None:
            chains = [draft for draft in drafts if isinstance(draft, Proposal)]
            parts, accepted = verify_granted(
                target, self._running, anchors, chains, choosers, layer_ids=self._layer_ids
            )
            return [
                _Verdict(
                    output=part,
                    request=0,
                    rows=slice(0, count + 1),
                    accepted=chain.tokens_m[:count].tolist(),
                    next=token,
                )
                for part, chain, (count, token) in zip(parts, chains, accepted, strict=True)
            ]
        rows = rows_of(anchors, drafts)
        output = target.forward(rows.ids_BR, self._running, layer_ids=self._layer_ids, parents_BT=rows.parents_BR)
        walked = verify_drafts(target.head(output.last_hidden_BTH), drafts, choosers)
        self._running.commit_paths([[0, *path] for path, _ in walked])
        return [
            _Verdict(
                output=output,
                request=b,
                rows=[0, *path],
                accepted=[tokens_of(draft)[row - 1] for row in path],
                next=token,
            )
            for b, (draft, (path, token)) in enumerate(zip(drafts, walked, strict=True))
        ]

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


def _committed(output: TargetOutput, request: int, rows: list[int] | slice, next_ids: list[int]) -> Committed:
    """``rows`` of a request's pass, with the token after each."""
    hidden_BTH = output.last_hidden_BTH
    features_BTKH = hidden_BTH.unsqueeze(2)[:, :, :0] if output.features_BTKH is None else output.features_BTKH
    return Committed(
        features_TKH=features_BTKH[request, rows],
        next_ids_T=torch.tensor(next_ids),
        last_hidden_TH=hidden_BTH[request, rows],
    )


def _cut(tokens: list[int], *, room: int, ends: frozenset[int]) -> tuple[list[int], str | None]:
    """What the user receives of a round's tokens, and how the request ends if it does."""
    for i, token in enumerate(tokens[:room]):
        if token in ends:
            return tokens[: i + 1], "stop"
    return (tokens[:room], "length") if len(tokens) >= room else (tokens, None)
