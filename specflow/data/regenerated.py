"""Dialogues with a journal, and the rows and counts that come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.data.answers import Answer, AnswerLog
from specflow.data.dialogues import Dialogue, Render
from specflow.data.quarantine import SHOWN, DataError, Quarantined, enforce_share, reasons
from specflow.data.thinking import THINK_TAG


@dataclass(slots=True, kw_only=True)
class Session:
    """Every dialogue of a run. An engine asks for answers and hands them to ``answered``."""

    dialogues: list[Dialogue]
    log: AnswerLog
    render: Render
    ends: frozenset[int]
    room: int | None
    """Longest prompt in tokens."""
    largest_share: float = 1.0
    """Of the dialogues, that may be given up."""
    given_up: int = 0
    token_count: int = 0
    """Produced in this process."""
    answer_count: int = 0
    prompts_differ: int = 0
    """Answers in this process whose prompt a server rendered otherwise."""
    models: set[str] = field(default_factory=set)
    """Names of the models whose answers the dialogues have."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the engine tells about itself."""

    def begin(self, known: MutableMapping[tuple[str, int], Answer]) -> int:
        """Prepare every dialogue and bring it to where the journal ends; returns the answers taken out of there."""
        taken = 0
        for dialogue in self.dialogues:
            self._prepare(dialogue)
            while dialogue.open:
                answer = known.pop((dialogue.row.id, dialogue.turn), None)
                if answer is None or answer.prompt_sha256 != dialogue.prompt_sha256:
                    break
                self._take(dialogue, answer)
                taken += 1
        return taken

    def answered(self, dialogue: Dialogue, answer: Answer) -> None:
        """Keep a new answer: from here on it survives a kill."""
        self.log.append(answer)
        self.token_count += answer.token_count
        self.answer_count += 1
        self.prompts_differ += answer.prompt_ids is not None or (
            answer.prompt_count is not None and answer.prompt_count != len(dialogue.prompt_ids)
        )
        self._take(dialogue, answer)

    def refuse(self, dialogue: Dialogue, reason: str, detail: str) -> None:
        """Give a row up that an engine cannot answer."""
        dialogue.refuse(reason, detail)
        self.given_up += 1

    @property
    def hopeless(self) -> bool:
        """More rows are given up than may be: further answers would be for nothing."""
        return self.given_up > self.largest_share * len(self.dialogues)

    def enforce(self) -> None:
        """Raise :class:`DataError` with the reasons if the session is ``hopeless``."""
        if self.dialogues:
            enforce_share(set_aside(self.dialogues), total=len(self.dialogues), largest_share=self.largest_share)

    def waiting(self) -> list[Dialogue]:
        """Dialogues that need an answer, those with a common start together."""
        return sorted((d for d in self.dialogues if d.open), key=lambda d: d.prompt_ids)

    def _take(self, dialogue: Dialogue, answer: Answer) -> None:
        self.models |= {answer.model} if answer.model else set()
        dialogue.accept(answer, ends=self.ends)
        if dialogue.open:
            self._prepare(dialogue)
        else:
            self.given_up += dialogue.defect is not None

    def _prepare(self, dialogue: Dialogue) -> None:
        dialogue.prepare(self.render, room=self.room)
        self.given_up += dialogue.defect is not None


def set_aside(dialogues: Sequence[Dialogue]) -> list[Quarantined]:
    """The rows given up, with their reasons: prompts before answers, each in the order of the input."""
    found = [(d, d.defect) for d in dialogues if d.defect]
    return [
        Quarantined(source=d.row.source, row=d.row.row, reason=defect.reason, detail=defect.detail, id=d.row.id)
        for d, defect in sorted(found, key=lambda pair: bool(pair[0].answers))
    ]


def cut_short(dialogues: Sequence[Dialogue], *, keep: bool) -> list[Quarantined]:
    """The rows to drop because their last answer ended by length.

    With ``keep`` only those without ids: rendered as text, half an answer would get the end of a whole one.
    """
    return [
        Quarantined(
            source=d.row.source,
            row=d.row.row,
            reason="ended_by_length",
            detail=f"{d.answers[-1].token_count} tokens{'' if d.answers[-1].tokens else ', and no ids are known'}",
            id=d.row.id,
        )
        for d in dialogues
        if not d.defect and d.answers[-1].finish == "length" and not (keep and d.answers[-1].tokens)
    ]


def conversation(dialogue: Dialogue, *, greedy: bool, every_turn: bool, further: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``conversations.jsonl``. Ids are there where the target's own are known.

    ``answered`` has the places of the target's own turns in ``messages``: the other turns of the assistant are the
    input's, and nothing to learn.
    """
    last = dialogue.answers[-1]
    row = {
        "id": dialogue.row.id,
        "split": dialogue.row.split,
        "kind": dialogue.row.kind,
        "messages": dialogue.messages,
        "answered": dialogue.places,
        "tools": dialogue.tools,
        "thinking": dialogue.thinking,
        **({"chat_template_kwargs": dict(further)} if further else {}),
        **({} if last.tokens is None else {"prompt_ids": list(dialogue.asked[-1]), "answer_ids": list(last.tokens)}),
        "finish": last.finish,
        "greedy": greedy,
    }
    pairs = list(zip(dialogue.asked, dialogue.answers, strict=True))
    if every_turn and all(answer.tokens is not None for _, answer in pairs):
        row["turns"] = [
            {"prompt_ids": list(p), "answer_ids": list(a.tokens or ()), "finish": a.finish} for p, a in pairs
        ]
    return row


def refuse_nothing_left(kept: Sequence[Dialogue], gone: Sequence[Quarantined]) -> None:
    """Raise :class:`DataError` with the true reasons where a split has no row left; ``gone`` are the rows asked."""
    splits = {dialogue.row.split for dialogue in kept}
    missing = [split for split in ("train", "heldout") if split not in splits]
    if missing:
        found = reasons(gone)
        length = " Those that ended by length need a larger max_new_tokens." if "ended_by_length" in found else ""
        raise DataError(
            f"no {' and no '.join(missing)} row is left of {len(kept) + len(gone)} that were asked. "
            f"Gone by reason: {found}. First: {'; '.join(map(str, gone[:SHOWN]))}.{length}"
        )


def counts(kept: Sequence[Dialogue], bad: Sequence[Quarantined], *, of_input: Mapping[str, int]) -> dict[str, Any]:
    """Sums over the rows that were kept, and of those that were not: ``bad``, and by reason those of the input."""
    found = Counter(of_input) + Counter(row.reason for row in bad)
    answers = [answer for dialogue in kept for answer in dialogue.answers]
    return {
        "rows": len(kept),
        "by_kind": dict(sorted(Counter(f"{d.row.split}/{d.row.kind}" for d in kept).items())),
        "prompt_tokens": sum(len(d.asked[-1]) for d in kept),
        "answer_tokens": sum(answer.token_count for answer in answers),
        "answers": len(answers),
        "finish": dict(sorted(Counter(d.answers[-1].finish for d in kept).items())),
        "stopped_early": sum(bool(d.later) for d in kept),
        "without_ids": sum(any(a.tokens is None for a in d.answers) for d in kept),
        "think_tags": sum(bool(THINK_TAG.search(a.text) or a.reasoning) for a in answers),
        "quarantined": found.total(),
        "quarantine_reasons": dict(sorted(found.items())),
    }
