"""``tokenize``: conversations in, token ids and supervised spans out (see ``specflow.data.tokenizing``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specflow.config.tokenize import TokenizeParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.data.tally import Tally
    from specflow.data.tokenizing import Options

NAME = "tokenize"
KIND = "tokens"
INPUTS = {"target": Arity.ONE, "conversations": Arity.ONE}
BYTES_PER_WORKER = 32_000_000
"""A further process takes seconds to start, so it needs some work to be worth it."""


def check(params: TokenizeParams) -> Iterable[Problem]:
    return ()


def files(params: TokenizeParams) -> Iterable[Path]:
    return ()


def estimate(params: TokenizeParams) -> Estimate:
    return Estimate(note=f"at most {params.max_length} tokens and about {6 * params.max_length} bytes per document")


def run(inputs: Inputs, params: TokenizeParams, context: Context) -> Metrics:
    from specflow.data.packing import padding_metrics
    from specflow.data.quarantine import DataError, enforce_share, write_quarantine
    from specflow.data.tally import refuse_useless

    try:
        tally = _tokenized(inputs, params, context)
        refuse_useless(tally, max_length=params.max_length)
        enforce_share(tally.quarantined, total=tally.rows, largest_share=params.max_skipped)
    except DataError as error:
        raise StageError(f"tokenize: {error}") from error
    write_quarantine(context.output / "quarantine.jsonl", tally.quarantined)
    for note in _notes(tally):
        context.log(note)
    packing = padding_metrics(tally.train_tokens, limit=params.max_length)
    context.log(
        f"packs of {params.max_length} tokens would be {packing['packs']}, {packing['padding_share']:.2%} padding; "
        "training lays documents one after the other and pads nothing"
    )
    return {**tally.metrics(), "packing": packing}


def _tokenized(inputs: Inputs, params: TokenizeParams, context: Context) -> Tally:
    from specflow.data.documents import TOKENS_FILE
    from specflow.data.streaming import count_lines, mapped
    from specflow.data.tally import Tally
    from specflow.data.tokenrows import chunk_tokenizer

    rows = inputs.one("conversations").file("conversations.jsonl")
    arguments = (inputs.one("target").path, _options(params))
    tally = Tally()
    with (
        context.progress("tokenize", total=count_lines(rows)) as progress,
        (context.output / TOKENS_FILE).open("wb") as file,
    ):
        for made in mapped(rows, chunk_tokenizer, arguments, workers=_workers(params, rows)):
            file.write(made.lines)
            tally.merge(made.tally)
            progress.advance(made.tally.rows)
    return tally


def _notes(tally: Tally) -> Iterable[str]:
    """What is no error and should be known."""
    if tally.counts["without_turn_end"]:
        yield f"{tally.counts['without_turn_end']} rows have a turn without a token that ends it"
    if tally.counts["reasoning_dropped"]:
        yield f"{tally.counts['reasoning_dropped']} rows have thoughts that the chat template leaves out"
    if tally.lost:
        found = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.lost.items()))
        yield f"{tally.lost.total()} documents of rows that give others cannot be used: {found}"
    declared = tally.thinking["on"] + tally.thinking["off"]
    if declared and tally.thinking_switch is None:
        yield f"{declared} documents declare a thinking mode, and the chat template has no switch for it"


def _workers(params: TokenizeParams, rows: Path) -> int:
    from specflow.data.processes import usable_cores

    return params.workers or min(usable_cores(), 1 + rows.stat().st_size // BYTES_PER_WORKER)


def _options(params: TokenizeParams) -> Options:
    from specflow.data.tokenizing import Options

    return Options(
        max_length=params.max_length,
        window_overlap=params.window_overlap if params.long_rows == "window" else None,
        last_turn_only=params.supervise == "last_turn",
        supervise_tool_calls=params.supervise_tool_calls,
        thinking=params.thinking,
    )
