"""``tokenize``: conversations in, token ids and supervised spans out (see ``specflow.data.tokenizing``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.tokenize import TokenizeParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.data.documents import TokenDocument
    from specflow.data.tokenizing import Tokenized

NAME = "tokenize"
KIND = "tokens"
INPUTS = {"target": Arity.ONE, "conversations": Arity.ONE}


def check(params: TokenizeParams) -> Iterable[Problem]:
    return ()


def files(params: TokenizeParams) -> Iterable[Path]:
    return ()


def estimate(params: TokenizeParams) -> Estimate:
    return Estimate(note=f"at most {params.max_length} tokens and about {6 * params.max_length} bytes per row")


def run(inputs: Inputs, params: TokenizeParams, context: Context) -> Metrics:
    from specflow.data.documents import TOKENS_FILE, write_documents
    from specflow.data.quarantine import DataError, enforce_share, write_quarantine
    from specflow.data.tokenizing import refuse_useless

    try:
        result = _tokenized(inputs, params, context)
        refuse_useless(result, max_length=params.max_length)
        enforce_share(result.quarantined, total=result.rows, largest_share=params.max_skipped)
    except DataError as error:
        raise StageError(f"tokenize: {error}") from error
    write_documents(context.output / TOKENS_FILE, result.documents)
    write_quarantine(context.output / "quarantine.jsonl", result.quarantined)
    return _metrics(result)


def _tokenized(inputs: Inputs, params: TokenizeParams, context: Context) -> Tokenized:
    from specflow.data.json_lines import read_json_lines
    from specflow.data.rendering import Renderer
    from specflow.data.tokenizer import load_tokenizer
    from specflow.data.tokenizing import Tokenized, add_conversation

    tokenizer, end_ids = load_tokenizer(inputs.one("target").path)
    rows = list(read_json_lines(inputs.one("conversations").file("conversations.jsonl")))
    renderer, result = Renderer(tokenizer), Tokenized()
    with context.progress("tokenize", total=len(rows)) as progress:
        for number, row in rows:
            add_conversation(
                result, row, number=number, renderer=renderer, end_ids=end_ids, max_length=params.max_length
            )
            progress.advance()
    return result


def _metrics(result: Tokenized) -> dict[str, Any]:
    from specflow.data.quarantine import reasons

    documents = result.documents
    tokens = sum(len(d.ids) for d in documents)
    supervised = sum(sum(d.supervised) for d in documents)
    groups = sorted({(d.split, d.kind) for d in documents})
    return {
        "rows": result.rows,
        "documents": len(documents),
        "tokens": tokens,
        "supervised_tokens": supervised,
        "supervised_share": supervised / tokens,
        "counts": result.counts,
        "quarantined": len(result.quarantined),
        "quarantine_reasons": reasons(result.quarantined),
        "lengths": histogram([len(d.ids) for d in documents], _length_edges(documents)),
        "supervised_shares": histogram(
            [sum(d.supervised) / len(d.ids) for d in documents], [n / 10 for n in range(11)]
        ),
        "by_kind": {
            f"{split}/{kind}": _sums([d for d in documents if (d.split, d.kind) == (split, kind)])
            for split, kind in groups
        },
    }


def _sums(documents: Sequence[TokenDocument]) -> dict[str, int]:
    return {
        "documents": len(documents),
        "tokens": sum(len(d.ids) for d in documents),
        "supervised_tokens": sum(sum(d.supervised) for d in documents),
    }


def _length_edges(documents: Sequence[TokenDocument]) -> list[float]:
    """0, then powers of two up to the longest document."""
    edges = [0.0, 16.0]
    while edges[-1] <= max(len(d.ids) for d in documents):
        edges.append(edges[-1] * 2)
    return edges


def histogram(values: Sequence[float], edges: Sequence[float]) -> dict[str, list[float]]:
    """Counts of ``edges[i] <= value < edges[i + 1]``; the last bin includes its upper edge."""
    counts = [0.0] * (len(edges) - 1)
    for value in values:
        inside = (i for i in range(len(counts)) if value < edges[i + 1])
        counts[next(inside, len(counts) - 1)] += 1
    return {"edges": list(edges), "counts": counts}
