"""``vocab``: token documents in, a draft vocabulary out (see ``specflow.data.vocabulary``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.vocab import VocabParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.data.documents import TokenDocument

NAME = "vocab"
KIND = "vocab"
INPUTS: Mapping[str, Arity] = {"target": Arity.ONE, "tokens": Arity.ONE}
MOST_MISSED = 20


def check(params: VocabParams) -> Iterable[Problem]:
    return ()


def files(params: VocabParams) -> Iterable[Path]:
    return ()


def estimate(params: VocabParams) -> Estimate:
    return Estimate(bytes=8 * params.size + 500_000)


def run(inputs: Inputs, params: VocabParams, context: Context) -> Metrics:
    """Payload: ``vocabulary.safetensors`` (``d2t``, ``t2d``) and ``coverage.json``."""
    from specflow.data.coverage import coverage_table, measure_coverage
    from specflow.data.quarantine import DataError
    from specflow.data.token_bytes import token_bytes
    from specflow.data.tokenizer import load_tokenizer
    from specflow.data.vocabulary import (
        VOCABULARY_FILE,
        always_included,
        build_map,
        count_supervised,
        read_map,
        write_map,
    )

    path = inputs.one("target").path
    tokenizer, ends = load_tokenizer(path)
    size = _vocabulary_size(path)
    tokens = inputs.one("tokens").path
    try:
        counts_V = count_supervised(_documents(tokens, "train"), vocabulary_size=size)
        mapping = build_map(counts_V, size=params.size, always=always_included(tokenizer, ends))
        write_map(context.output / VOCABULARY_FILE, mapping)
        mapping_read = read_map(context.output / VOCABULARY_FILE)
    except DataError as error:
        raise StageError(f"vocab: {error}") from error
    pieces, special = token_bytes(tokenizer, size), frozenset(tokenizer.added_tokens_decoder)
    seen, unseen = (
        measure_coverage(_documents(tokens, split), mapping_read.t2d_V, pieces=pieces, special=special)
        for split in ("train", "heldout")
    )
    context.log(f"share of the supervised tokens that can be proposed\n{coverage_table(seen, unseen)}")
    if mapping.filled:
        context.log(
            f"warning: the training answers have {int((counts_V > 0).sum())} distinct tokens; {mapping.filled} others "
            "were taken to fill the draft vocabulary. Use more training text, or a smaller vocab.size"
        )
    coverage = {"train": seen.as_json(), "heldout": unseen.as_json()}
    missed = [
        {"id": token, "text": pieces[token].decode("utf-8", "replace"), "tokens": count}
        for token, count in sorted(unseen.missing.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_MISSED]
    ]
    _write(context.output / "coverage.json", {**coverage, "most_missed_heldout": missed})
    return {
        "size": params.size,
        "target_size": size,
        "distinct_supervised": int((counts_V > 0).sum()),
        "by_rule": mapping.by_rule,
        "by_count": mapping.by_count,
        "filled": mapping.filled,
        "coverage": coverage,
    }


def _documents(tokens: Path, split: str) -> Iterator[TokenDocument]:
    """One at a time: the file is read again for every use."""
    from specflow.data.documents import iterate_documents

    return (document for document in iterate_documents(tokens) if document.split == split)


def _vocabulary_size(path: Path) -> int:
    """Rows of the target's head, which may be more than the tokenizer has tokens."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return int(config.get("vocab_size") or config["text_config"]["vocab_size"])


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
