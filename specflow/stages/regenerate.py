"""``regenerate``: prompts in, the target's own answers out.

Answers are appended to the scratch directory as they finish; a resumed run decodes only the rows
that are missing. Every row has its own sampling stream. Rows are decoded sorted by their prompts, so
that prompts with a common start are together, and written in the order of the input. A resumed run
gives the answers of an uninterrupted one, except where two logits lie within the rounding that
another batch brings.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.regenerate import RegenerateParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.data.answers import Answer
    from specflow.data.prompts import Prompt
    from specflow.data.quarantine import Quarantined
    from specflow.decoding.records import Generation
    from specflow.targets.target import Target

NAME = "regenerate"
KIND = "conversations"
INPUTS = {"target": Arity.ONE}
THINK_TAG = re.compile(r"</?\s*think(?:ing)?\s*>", re.IGNORECASE)


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
    from specflow.data.quarantine import DataError, enforce_share, write_quarantine
    from specflow.data.rendering import Renderer
    from specflow.stages.machine import resolved
    from specflow.stages.prompts import read_prompts
    from specflow.targets.target import Target

    path = inputs.one("target").path
    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    try:
        prompts, used = read_prompts(params, context)
        target = Target.load(path, precision=precision, threads=threads)
        renderer = Renderer(target.tokenizer)
        rendered = {p.id: renderer.ids(p.messages, answer=True) for p in prompts.rows}
        rows, too_long = _fitting(prompts.rows, rendered, target, params)
        answers, timing = _answers(rows, rendered, target, params, context)
        kept, empty = _with_content(rows, answers, target)
        bad = [*prompts.quarantined, *too_long, *empty]
        enforce_share(bad, total=prompts.total, largest_share=params.max_skipped)
    except DataError as error:
        raise StageError(f"regenerate: {error}") from error
    lines = [_conversation(p, rendered[p.id], answers[p.id], target, params) for p in kept]
    with (context.output / "conversations.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_quarantine(context.output / "quarantine.jsonl", bad)
    return _metrics(lines, bad, prompts.total, target) | timing | {"inputs": used}


def _fitting(
    rows: Sequence[Prompt], rendered: Mapping[str, list[int]], target: Target, params: RegenerateParams
) -> tuple[list[Prompt], list[Quarantined]]:
    """Rows whose prompt and longest answer fit the target's positions, and the others."""
    from specflow.data.quarantine import Quarantined

    positions = getattr(target.config, "max_position_embeddings", None)
    room = None if positions is None else int(positions) - params.max_new_tokens
    kept = [p for p in rows if room is None or len(rendered[p.id]) <= room]
    ids = {p.id for p in kept}
    return kept, [
        Quarantined(
            source=p.source,
            row=p.row,
            reason="prompt_too_long",
            detail=f"{len(rendered[p.id])} tokens and {params.max_new_tokens} to come, the target has {positions}",
            id=p.id,
        )
        for p in rows
        if p.id not in ids
    ]


def _answers(
    rows: Sequence[Prompt],
    rendered: Mapping[str, list[int]],
    target: Target,
    params: RegenerateParams,
    context: Context,
) -> tuple[dict[str, Answer], dict[str, Any]]:
    from specflow.data.answers import Answer, AnswerLog, prompt_hash, read_answers
    from specflow.decoding.plain import decode_plain

    path = context.scratch / "answers.jsonl"
    hashes = {p.id: prompt_hash(rendered[p.id]) for p in rows}
    answers = {i: a for i, a in read_answers(path).items() if hashes.get(i) == a.prompt_sha256}
    missing = sorted((p for p in rows if p.id not in answers), key=lambda p: rendered[p.id])
    if answers:
        context.log(f"{len(answers)} of {len(rows)} prompts are already answered")
    tokens, begin = 0, time.perf_counter()
    with AnswerLog(path) as log, context.progress("regenerate", total=len(rows), unit="prompts") as progress:
        progress.advance(len(answers))

        def on_done(position: int, generation: Generation) -> None:
            nonlocal tokens
            row = missing[position]
            answer = Answer(
                id=row.id, prompt_sha256=hashes[row.id], tokens=list(generation.tokens), finish=generation.finish
            )
            log.append(answer)
            answers[row.id] = answer
            tokens += len(answer.tokens)
            progress.describe(f"{tokens / (time.perf_counter() - begin):.0f} tokens/s")
            progress.advance()

        if missing:
            decode_plain(
                target,
                [rendered[p.id] for p in missing],
                max_new_tokens=params.max_new_tokens,
                temperature=params.temperature,
                seeds=[_seed(params.seed, p.id) for p in missing],
                batch_size=params.batch_size,
                on_done=on_done,
            )
    seconds = time.perf_counter() - begin
    unanswered = [p.id for p in rows if p.id not in answers]
    if unanswered:
        raise StageError(f"regenerate: {len(unanswered)} prompts got no answer, the first is {unanswered[0]}")
    rate = tokens / seconds if tokens else None
    return answers, {"seconds": seconds, "tokens_per_second": rate, "decoded_rows": len(missing)}


def _seed(seed: int, row_id: str) -> int:
    """A row's own stream: depends on nothing but the seed and the row."""
    return int.from_bytes(sha256(f"{seed}:{row_id}".encode()).digest()[:7], "big")


def _with_content(
    rows: Sequence[Prompt], answers: Mapping[str, Answer], target: Target
) -> tuple[list[Prompt], list[Quarantined]]:
    """Rows with an answer of at least one token before the end, and the others."""
    from specflow.data.quarantine import Quarantined

    empty = {p.id for p in rows if all(t in target.end_ids for t in answers[p.id].tokens)}
    bad = [
        Quarantined(source=p.source, row=p.row, reason="empty_answer", detail="the target ended at once", id=p.id)
        for p in rows
        if p.id in empty
    ]
    return [p for p in rows if p.id not in empty], bad


def _conversation(
    prompt: Prompt, prompt_ids: list[int], answer: Answer, target: Target, params: RegenerateParams
) -> dict[str, Any]:
    content = answer.tokens[:-1] if answer.finish == "stop" else answer.tokens
    text = target.tokenizer.decode(content, skip_special_tokens=False)
    return {
        "id": prompt.id,
        "split": prompt.split,
        "kind": prompt.kind,
        "messages": [*prompt.messages, {"role": "assistant", "content": text}],
        "prompt_ids": prompt_ids,
        "answer_ids": answer.tokens,
        "finish": answer.finish,
        "greedy": params.temperature == 0,
    }


def _metrics(
    lines: Sequence[Mapping[str, Any]], bad: Sequence[Quarantined], total: int, target: Target
) -> dict[str, Any]:
    from specflow.data.quarantine import reasons

    return {
        "prompts": total,
        "rows": len(lines),
        "by_kind": dict(sorted(Counter(f"{line['split']}/{line['kind']}" for line in lines).items())),
        "prompt_tokens": sum(len(line["prompt_ids"]) for line in lines),
        "answer_tokens": sum(len(line["answer_ids"]) for line in lines),
        "finish": dict(sorted(Counter(str(line["finish"]) for line in lines).items())),
        "think_tags": sum(bool(THINK_TAG.search(line["messages"][-1]["content"])) for line in lines),
        "quarantined": len(bad),
        "quarantine_reasons": reasons(bad),
        "precision": target.precision,
    }
