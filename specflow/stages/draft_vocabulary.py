"""The draft vocabulary of a training run, chosen once, from the documents it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specflow.stages.contract import Context, StageError

if TYPE_CHECKING:
    from specflow.training.data import Documents


class _Counted(NamedTuple):
    """See ``specflow.data.vocabulary.Supervised``."""

    ids: Sequence[int]
    supervised: Sequence[bool]


def draft_vocabulary(
    target: Path, documents: Documents, train: Sequence[int], *, size: int, context: Context
) -> list[int]:
    """Increasing ids of the target's tokens that the drafter can propose.

    Raises ``StageError`` for a size that does not fit the target's vocabulary.
    """
    from specflow.data.quarantine import DataError
    from specflow.data.tokenizer import load_tokenizer
    from specflow.data.vocabulary import always_included, build_map, count_supervised
    from specflow.drafters.target_weights import TargetWeights

    def counted() -> Iterator[_Counted]:
        for position in train:
            document = documents.get(position)
            yield _Counted(document.token_ids_T.tolist(), document.supervised_T.tolist())

    tokenizer, ends = load_tokenizer(target)
    total = int(TargetWeights(target).config["vocab_size"])
    always = {i for i in always_included(tokenizer, ends) if i < total}
    try:
        counts_V = count_supervised(counted(), vocabulary_size=total)
        found = build_map(counts_V, size=size, always=always)
    except DataError as error:
        raise StageError(f"draft_vocab_size: {error}") from error
    covered, supervised = int(counts_V[found.t2d_V].sum()), max(1, int(counts_V.sum()))
    context.log(
        f"draft vocabulary of {size} of {total} tokens: {covered / supervised:.2%} of the supervised tokens, "
        f"{found.by_rule} special, byte-level and turn-end ids"
        + (f"; {found.filled} that no training answer has" if found.filled else "")
    )
    ids: list[int] = found.target_ids_D.tolist()
    return ids
