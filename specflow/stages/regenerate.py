"""``regenerate``: prompts in, the target's own answers out.

Answers come from the embedded engine or from a server (``specflow.stages.answering``). They are appended to the
scratch directory as they finish; a resumed run asks only for what is missing. Rows are written in the order of the
input.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from specflow.config.regenerate import RegenerateParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

NAME = "regenerate"
KIND = "conversations"
INPUTS = {"target": Arity.ONE}


def check(params: RegenerateParams) -> Iterable[Problem]:
    """Problems that the first rows of every source show (see ``specflow.stages.prompts``)."""
    from specflow.stages.prompts import check_sources

    return check_sources(params)


def files(params: RegenerateParams) -> Iterable[Path]:
    from specflow.data.inputs.readers import files_of

    return [file for source in (*params.train, *params.heldout) for file in files_of(source)]


def estimate(params: RegenerateParams) -> Estimate:
    from specflow.stages.prompts import expected_rows

    rows, about = expected_rows(params)
    if rows is None:
        return Estimate(note="unknown: a source of prompts cannot be read")
    tokens = rows * params.max_new_tokens
    note = f"{about}{rows} prompts, at most {tokens} tokens"
    return Estimate(bytes=rows * (2000 + 12 * params.max_new_tokens), note=note)


def run(inputs: Inputs, params: RegenerateParams, context: Context) -> Metrics:
    from specflow.data.quarantine import DataError, write_quarantine
    from specflow.data.regenerated import conversation, counts, cut_short, refuse_nothing_left, set_aside
    from specflow.stages.answering import answer_prompts
    from specflow.stages.prompts import read_prompts

    try:
        prompts = read_prompts(params, context)
        dialogues, engine = answer_prompts(prompts.rows(), inputs.one("target").path, params, context)
        bad = set_aside(dialogues)
        dropped = cut_short(dialogues, keep=params.length_limited == "keep")
        gone = {row.id for row in dropped}
        kept = [d for d in dialogues if not d.defect and d.row.id not in gone]
        refuse_nothing_left(kept, [*bad, *dropped])
    except DataError as error:
        raise StageError(f"regenerate: {error}") from error
    every_turn, further = params.turns == "all", params.chat_template_kwargs
    with (context.output / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for dialogue in kept:
            row = conversation(dialogue, greedy=params.temperature == 0, every_turn=every_turn, further=further)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    write_quarantine(context.output / "quarantine.jsonl", chain(prompts.quarantined(), bad, dropped))
    used = prompts.summary()
    return {
        "prompts": prompts.total,
        **counts(kept, bad, of_input=used["set_aside"]),
        "dropped_by_length": len(dropped),
        **engine,
        "inputs": used,
    }
