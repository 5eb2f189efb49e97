"""Conversations to documents.

Where the conversation was regenerated, the document is ``prompt_ids + answer_ids``: the ids the
target really read and produced, which are what an engine sees when it serves. Rendering the text
again may give other ids (a tokenizer does not undo its own decoding); such rows keep the produced
ids and are counted as ``retokenised_differs``. Supervised is the whole answer, with the end token
if it finished by one. Conversations without produced ids get their spans from render boundaries; where a row
says which turns are the target's (``answered``), only they are supervised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from specflow.data.answered import usable_row
from specflow.data.conversations import Defect, Message
from specflow.data.documents import TokenDocument
from specflow.data.inputs.rows import to_json
from specflow.data.produced import Produced, produced_documents, produced_ids
from specflow.data.quarantine import SELECTED, Quarantined
from specflow.data.rendering import Renderer
from specflow.data.spans import rows_of
from specflow.data.tools import Malformed
from specflow.data.turns import NotAsServed
from specflow.data.windows import cut, windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is made of a row."""

    max_length: int
    window_overlap: int | None = None
    """None: longer documents are cut."""
    last_turn_only: bool = False
    supervise_tool_calls: bool = True
    thinking: bool | None = None
    """Mode of rows that declare none."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one row."""

    documents: list[TokenDocument] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    """One entry, if the row gives no document."""
    lost: list[str] = field(default_factory=list)
    """Reasons of documents that cannot be used, of a row that gives others."""
    notes: list[str] = field(default_factory=list)
    """Names of counts to be raised by one."""


class RowTokenizer:
    """Tokenises rows of ``conversations.jsonl`` one by one; keeps nothing of a row that another could see."""

    def __init__(self, renderer: Renderer, end_ids: Collection[int], options: Options) -> None:
        self._renderer = renderer
        self._end_ids = end_ids
        self._options = options

    def outcome(self, row: Any, number: int) -> Outcome:
        """``number`` is the row's line."""
        made = Outcome()

        def set_aside(reason: str, detail: str = "") -> None:
            row_id = str(row.get("id")) if isinstance(row, Mapping) else None
            made.quarantined.append(
                Quarantined(source="conversations.jsonl", row=number, reason=reason, detail=detail, id=row_id)
            )

        try:
            to_json(row)
            messages = usable_row(row)
            to_json(messages)  # Again: arguments of calls were JSON text until now.
        except Malformed as error:
            set_aside(error.reason, error.detail)
            return made
        if isinstance(messages, Defect):
            set_aside(*messages)
            return made
        try:
            documents = list(self._documents(row, messages, made.notes))
        except (NotAsServed, TemplateError) as error:
            set_aside("not_as_served" if isinstance(error, NotAsServed) else "template_refused", str(error))
            return made
        unusable = [defect for each in documents for defect in [self._fit(made, *each)] if defect]
        if made.documents:
            made.lost += [defect.reason for defect in unusable]
        elif unusable:
            set_aside(*_of_the_row(unusable))
        return made

    def _documents(self, row: Mapping[str, Any], messages: Sequence[Message], notes: list[str]) -> Iterator[Produced]:
        thinking = row.get("thinking")
        settings: dict[str, Any] = {
            "tools": row.get("tools") or None,
            "thinking": self._options.thinking if thinking is None else bool(thinking),
            "arguments": row.get("chat_template_kwargs"),
        }
        about: dict[str, Any] = {
            "split": str(row["split"]),
            "kind": str(row["kind"]),
            "conversation": str(row["id"]),
            "thinking": settings["thinking"],
        }
        produced = produced_ids(row)
        if produced:
            yield from self._produced(row, produced, notes, messages, settings, about)
            return
        rows = rows_of(
            self._renderer,
            messages,
            self._end_ids,
            supervise_tool_calls=self._options.supervise_tool_calls,
            last_turn_only=self._options.last_turn_only,
            unfinished=row.get("finish") == "length",
            answered=row.get("answered"),
            **settings,
        )
        notes += ["ended_by_length"] if row.get("finish") == "length" else []
        notes += ["history_rewritten"] if rows[0].rewritten else []
        notes += ["without_turn_end"] if any(r.without_turn_end for r in rows) else []
        notes += ["reasoning_dropped"] if any(r.reasoning_dropped for r in rows) else []
        finish = str(row.get("finish") or "unknown")
        greedy = bool(row.get("greedy")) and row.get("answered") is not None  # Else turns of the input are learned too.
        for turn, made in enumerate(rows):
            document = TokenDocument(
                id=f"{row['id']}#{turn}" if len(rows) > 1 else str(row["id"]),
                ids=made.ids,
                supervised=made.supervised,
                prompt_length=made.prompt_length,
                finish=finish,
                greedy=greedy,
                **about,
            )
            yield Produced(document, made.only_calls)

    def _produced(
        self,
        row: Mapping[str, Any],
        produced: Sequence[Mapping[str, Any]],
        notes: list[str],
        messages: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        about: Mapping[str, Any],
    ) -> Iterator[Produced]:
        documents = produced_documents(
            row,
            produced,
            about,
            last_turn_only=self._options.last_turn_only,
            supervise_tool_calls=self._options.supervise_tool_calls,
        )
        last = documents[-1].document.ids
        try:
            again = self._renderer.ids(messages, **settings)[: len(last)]
        except TemplateError:
            again = []
        notes += ["retokenised_differs"] if again != last else []
        notes += ["ended_by_length"] if any(d.document.finish == "length" for d in documents) else []
        yield from documents

    def _fit(self, made: Outcome, document: TokenDocument, only_calls: bool) -> Defect | None:
        """Add what fits the length of ``document`` to ``made``, or say why nothing of it can be used."""
        options, length = self._options, len(document.ids)
        if True not in document.supervised:
            return Defect("only_tool_calls" if only_calls else "no_supervised_tokens", "")
        if False not in document.supervised:
            return Defect("all_tokens_supervised", "")
        if options.window_overlap is not None and document.split == "train":
            parts = list(windows(document, options.max_length, overlap=options.window_overlap))
            made.notes += ["windowed"] if length > options.max_length else []
        elif True in document.supervised[: options.max_length]:
            parts = [cut(document, options.max_length)]
            made.notes += ["truncated"] if length > options.max_length else []
        else:
            first = document.supervised.index(True)
            detail = f"truncation: the first supervised token is {first}, max_length is {options.max_length}"
            return Defect("truncated_away", detail)
        made.documents += parts
        return None


def _of_the_row(unusable: Sequence[Defect]) -> Defect:
    """Why a row gives nothing, where each of its documents has a reason: the most frequent one, then the first.

    A reason that the configuration asked for is the row's only where it is that of all its documents.
    """
    unusable = [defect for defect in unusable if defect.reason not in SELECTED] or unusable
    reasons = [defect.reason for defect in unusable]
    found = max(unusable, key=lambda defect: reasons.count(defect.reason))
    if len(unusable) == 1:
        return found
    count = f"{reasons.count(found.reason)} of {len(unusable)} documents"
    return Defect(found.reason, f"{count}; {found.detail}" if found.detail else count)
