"""Lines of ``conversations.jsonl`` to lines of ``tokens.jsonl``: the work of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from specflow.data.documents import document_line
from specflow.data.quarantine import DataError
from specflow.data.rendering import Renderer
from specflow.data.streaming import Chunk
from specflow.data.tally import Tally
from specflow.data.tokenizer import load_tokenizer
from specflow.data.tokenizing import Options, RowTokenizer


class Tokenized(NamedTuple):
    """What became of a chunk."""

    lines: bytes
    tally: Tally


def chunk_tokenizer(target: Path, options: Options) -> Callable[[Chunk], Tokenized]:
    """A function from lines to lines. Raises :class:`DataError` for a target without chat template.

    The function raises :class:`DataError` for a line that is not JSON.
    """
    tokenizer, end_ids = load_tokenizer(target)
    renderer = Renderer(tokenizer)
    rows = RowTokenizer(renderer, end_ids, options)

    def tokenized(chunk: Chunk) -> Tokenized:
        tally, lines = Tally(thinking_switch=renderer.thinking_switch), []
        for number, line in enumerate(chunk.lines, start=chunk.first):
            if line.strip():
                outcome = rows.outcome(_parsed(line, number), number)
                tally.add(outcome)
                lines += [document_line(document) for document in outcome.documents]
        return Tokenized("".join(lines).encode(), tally)

    return tokenized


def _parsed(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        shown = line[:60].decode("utf-8", "replace").strip()
        raise DataError(
            f"conversations.jsonl:{number}: expected one JSON object per line, found {shown!r} ({error})"
        ) from error
