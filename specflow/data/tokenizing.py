"""Conversations to documents.

Where the conversation was regenerated, the document is ``prompt_ids + answer_ids``: the ids the
target really read and produced, which are what an engine sees when it serves. Rendering the text
again may give other ids (a tokenizer does not undo its own decoding); such rows keep the produced
ids and are counted as ``retokenised_differs``. Supervised is the whole answer, with the end token
if it finished by one. Conversations without produced ids get their spans from render boundaries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specflow.data.conversations import clean, defect
from specflow.data.documents import TokenDocument
from specflow.data.quarantine import DataError, Quarantined
from specflow.data.rendering import Renderer
from specflow.data.spans import rows_of


@dataclass(slots=True, kw_only=True)
class Tokenized:
    """Documents and what was counted on the way."""

    documents: list[TokenDocument] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    rows: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("truncated", "retokenised_differs", "history_rewritten", "without_turn_end", "ended_by_length"), 0
        )
    )


def add_conversation(
    result: Tokenized,
    row: Mapping[str, Any],
    *,
    number: int,
    renderer: Renderer,
    end_ids: Collection[int],
    max_length: int,
) -> None:
    """Tokenise one row of ``conversations.jsonl`` (line ``number``) into ``result``."""
    result.rows += 1
    bad = _quarantine(row, number)
    found = defect(row.get("messages"), last="assistant")
    if found and not (row.get("answer_ids") and found.reason == "empty_content"):
        # An answer may be blank as text and still be what the target produced.
        result.quarantined.append(bad(found.reason, found.detail))
        return
    documents, notes = _documents(row, renderer, end_ids)
    for note in notes:
        result.counts[note] += 1
    for document in documents:
        _add(result, document, bad, max_length)


def _quarantine(row: Mapping[str, Any], number: int) -> Any:
    def bad(reason: str, detail: str = "") -> Quarantined:
        return Quarantined(
            source="conversations.jsonl", row=number, reason=reason, detail=detail, id=str(row.get("id"))
        )

    return bad


def _documents(
    row: Mapping[str, Any], renderer: Renderer, end_ids: Collection[int]
) -> tuple[list[TokenDocument], list[str]]:
    messages = clean(row["messages"])
    split, kind = str(row["split"]), str(row["kind"])
    if row.get("answer_ids"):
        prompt, answer = list(row["prompt_ids"]), list(row["answer_ids"])
        ids = prompt + answer
        document = TokenDocument(
            id=str(row["id"]),
            ids=ids,
            supervised=[False] * len(prompt) + [True] * len(answer),
            prompt_length=len(prompt),
            finish=str(row["finish"]),
            greedy=bool(row.get("greedy", False)),
            split=split,
            kind=kind,
        )
        notes = ["retokenised_differs"] if renderer.ids(messages)[: len(ids)] != ids else []
        return [document], notes + (["ended_by_length"] if document.finish == "length" else [])
    rows = rows_of(renderer, messages, end_ids)
    notes = ["history_rewritten"] if rows[0].rewritten else []
    notes += ["without_turn_end"] if any(r.without_turn_end for r in rows) else []
    documents = [
        TokenDocument(
            id=f"{row['id']}#{turn}" if len(rows) > 1 else str(row["id"]),
            ids=r.ids,
            supervised=r.supervised,
            prompt_length=r.prompt_length,
            split=split,
            kind=kind,
        )
        for turn, r in enumerate(rows)
    ]
    return documents, notes


def _add(result: Tokenized, document: TokenDocument, bad: Any, max_length: int) -> None:
    length = len(document.ids)
    if not any(document.supervised):
        result.quarantined.append(bad("no_supervised_tokens"))
    elif all(document.supervised):
        result.quarantined.append(bad("all_tokens_supervised"))
    elif not any(document.supervised[:max_length]):
        first = document.supervised.index(True)
        detail = f"truncation: the first supervised token is {first}, max_length is {max_length}"
        result.quarantined.append(bad("truncated_away", detail))
    else:
        truncated = length > max_length
        result.counts["truncated"] += truncated
        cut, mask = document.ids[:max_length], document.supervised[:max_length]
        result.documents.append(replace(document, truncated=truncated, ids=cut, supervised=mask))


def refuse_useless(result: Tokenized, *, max_length: int) -> None:
    """Raise :class:`DataError` if training on the corpus would train on nothing or on everything."""
    if result.documents:
        return
    causes = {q.reason for q in result.quarantined}
    if not result.rows:
        raise DataError("there are no conversations; regenerate made none")
    if causes == {"all_tokens_supervised"}:
        raise DataError(
            f"every token of all {result.rows} conversations would be supervised; expected prompts, which never are"
        )
    by_truncation = sum(q.reason == "truncated_away" for q in result.quarantined)
    if by_truncation:
        raise DataError(
            f"no supervised token is left in any of {result.rows} conversations; the cause is truncation in "
            f"{by_truncation} of them: their answers begin after max_length = {max_length} tokens. Raise max_length"
        )
    raise DataError(
        f"no supervised token was found in any of {result.rows} conversations (reasons: {sorted(causes)}); "
        "check that the chat template renders assistant turns"
    )
