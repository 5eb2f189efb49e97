"""``regenerate``: prompts in, the target's own answers out.

Answers come from the embedded engine or from a server (``specflow.stages.answering``). They are appended to the
scratch directory as they finish; a resumed run asks only for what is missing. Rows are written in the order of the
input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specflow.config.regenerate import PromptSource, RegenerateParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.data.prompts import Prompts

NAME = "regenerate"
KIND = "conversations"
INPUTS = {"target": Arity.ONE}


def check(params: RegenerateParams) -> Iterable[Problem]:
    """Problems of every prompt file: missing, empty, unreadable line, too many bad rows, rows in both splits."""
    from specflow.data.prompts import merge
    from specflow.data.quarantine import DataError, enforce_share

    parts: list[Prompts] = []
    problems: list[Problem] = []
    for where, split, source in _sources(params):
        try:
            parts.append(_read(split, source))
        except DataError as error:
            problems.append(
                Problem(
                    where=f"{where}.path",
                    found=str(error),
                    expected='JSON lines like {"messages": [{"role": "user", "content": "..."}]}',
                    hint="a path is relative to the configuration file",
                )
            )
    if not problems:
        merged = merge(parts)
        try:
            enforce_share(merged.quarantined, total=merged.total, largest_share=params.max_skipped)
        except DataError as error:
            problems.append(Problem(where="train", found=str(error), expected="usable prompts"))
    return problems


def files(params: RegenerateParams) -> Iterable[Path]:
    return [source.path for _, _, source in _sources(params)]


def estimate(params: RegenerateParams) -> Estimate:
    from specflow.data.quarantine import DataError

    try:
        rows = sum(len(_read(split, source).rows) for _, split, source in _sources(params))
    except DataError:
        return Estimate(note="unknown: a prompts file cannot be read")
    tokens = rows * params.max_new_tokens
    return Estimate(bytes=rows * (2000 + 12 * params.max_new_tokens), note=f"{rows} prompts, at most {tokens} tokens")


def run(inputs: Inputs, params: RegenerateParams, context: Context) -> Metrics:
    from specflow.data.prompts import merge
    from specflow.data.quarantine import DataError, enforce_share, write_quarantine
    from specflow.data.regenerated import conversation, counts, cut_short, set_aside
    from specflow.stages.answering import answer_prompts

    try:
        prompts = merge([_read(split, source) for _, split, source in _sources(params)])
        dialogues, engine = answer_prompts(prompts.rows, prompts.total, inputs.one("target").path, params, context)
        bad = [*prompts.quarantined, *set_aside(dialogues)]
        enforce_share(bad, total=prompts.total, largest_share=params.max_skipped)
        dropped = cut_short(dialogues, keep=params.length_limited == "keep")
        gone = {row.id for row in dropped}
        kept = [d for d in dialogues if not d.defect and d.row.id not in gone]
        if not kept:
            raise DataError(f"all of {len(dropped)} answers ended by length and were dropped; raise max_new_tokens")
    except DataError as error:
        raise StageError(f"regenerate: {error}") from error
    every_turn, further = params.turns == "all", params.chat_template_kwargs
    with (context.output / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for dialogue in kept:
            row = conversation(dialogue, greedy=params.temperature == 0, every_turn=every_turn, further=further)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    write_quarantine(context.output / "quarantine.jsonl", [*bad, *dropped])
    return {"prompts": prompts.total, **counts(kept, bad), "dropped_by_length": len(dropped), **engine}


def _sources(params: RegenerateParams) -> list[tuple[str, str, PromptSource]]:
    """(where in the section, split, source) of every prompts file."""
    train = [(f"train.{i}", "train", s) for i, s in enumerate(params.train)]
    return train + [(f"heldout.{i}", "heldout", s) for i, s in enumerate(params.heldout)]


def _read(split: str, source: PromptSource) -> Prompts:
    from specflow.data.prompts import read_prompts

    return read_prompts(source.path, split=split, kind=source.kind, limit=source.limit)
