"""Dialogues with a journal, and the rows and counts that come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.data.answers import Answer, AnswerLog
from specflow.data.dialogues import Dialogue, Render
from specflow.data.quarantine import Quarantined, reasons
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
    token_count: int = 0
    """Produced in this process."""
    answer_count: int = 0
    prompts_differ: int = 0
    """Answers in this process whose prompt a server rendered otherwise."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the engine tells about itself."""

    def begin(self, known: Mapping[tuple[str, int], Answer]) -> int:
        """Prepare every dialogue and bring it to where the journal ends; returns the answers taken from there."""
        taken = 0
        for dialogue in self.dialogues:
            dialogue.prepare(self.render, room=self.room)
            while dialogue.open:
                answer = known.get((dialogue.row.id, dialogue.turn))
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

    def waiting(self) -> list[Dialogue]:
        """Dialogues that need an answer, those with a common start together."""
        return sorted((d for d in self.dialogues if d.open), key=lambda d: d.prompt_ids)

    def _take(self, dialogue: Dialogue, answer: Answer) -> None:
        dialogue.accept(answer, ends=self.ends)
        if dialogue.open:
            dialogue.prepare(self.render, room=self.room)


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


def counts(kept: Sequence[Dialogue], bad: Sequence[Quarantined]) -> dict[str, Any]:
    """Sums over the rows that were kept, and of those that were not."""
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
        "quarantined": len(bad),
        "quarantine_reasons": reasons(bad),
    }
