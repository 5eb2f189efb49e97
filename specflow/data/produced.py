"""Documents from the ids that the target itself read and produced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specflow.data.documents import TokenDocument

Turn = Mapping[str, Any]
"""``prompt_ids``, ``answer_ids`` and ``finish`` of one turn."""


class Produced(NamedTuple):
    """A document, and whether nothing of it is learned because all its answers call tools."""

    document: TokenDocument
    only_calls: bool


def produced_ids(row: Mapping[str, Any]) -> list[Turn]:
    """The turns of a row that the target answered, in order; none if it answered none."""
    turns = row.get("turns")
    if turns:
        return list(turns)
    return [row] if row.get("answer_ids") else []


def produced_documents(
    row: Mapping[str, Any],
    turns: Sequence[Turn],
    about: Mapping[str, Any],
    *,
    last_turn_only: bool = False,
    supervise_tool_calls: bool = True,
) -> list[Produced]:
    """One document per turn, or one for several where the prompt of each begins with all that was there before it.

    Without ``supervise_tool_calls`` nothing of an answer that calls tools is supervised.
    """
    groups: list[list[Turn]] = []
    before: list[int] = []
    for turn in turns:
        if groups and list(turn["prompt_ids"][: len(before)]) == before:
            groups[-1].append(turn)
        else:
            groups.append([turn])
        before = [*turn["prompt_ids"], *turn["answer_ids"]]
    name = str(row["id"])
    names = [f"{name}#{n}" for n in range(len(groups))] if len(groups) > 1 else [name]
    silent = _calling(row, turns) if not supervise_tool_calls else []
    made = [
        _document(n, g[-1:] if last_turn_only else g, silent, row, about) for n, g in zip(names, groups, strict=True)
    ]
    return made[-1:] if last_turn_only else made


def _calling(row: Mapping[str, Any], turns: Sequence[Turn]) -> list[Turn]:
    calls = bool(row["messages"][-1].get("tool_calls"))
    return [t for t in turns if t.get("finish") == "tool_calls" or (calls and t is turns[-1])]


def _document(
    name: str, turns: Sequence[Turn], silent: Sequence[Turn], row: Mapping[str, Any], about: Mapping[str, Any]
) -> Produced:
    last = turns[-1]
    ids = [*last["prompt_ids"], *last["answer_ids"]]
    supervised = [False] * len(ids)
    for turn in turns:
        if not any(turn is other for other in silent):
            start = len(turn["prompt_ids"])
            end = start + len(turn["answer_ids"])
            supervised[start:end] = [True] * (end - start)
    document = TokenDocument(
        id=name,
        ids=ids,
        supervised=supervised,
        prompt_length=supervised.index(True) if True in supervised else len(ids),
        finish=str(last.get("finish") or "unknown"),
        greedy=bool(row.get("greedy", False)),
        **about,
    )
    return Produced(document, all(any(turn is other for other in silent) for turn in turns))
