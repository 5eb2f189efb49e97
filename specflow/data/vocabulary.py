"""Draft vocabularies: which of the target's tokens a drafter can propose.

The most frequent supervised tokens of the training answers, and always the special, byte-level and turn-end ids,
without which accented text, CJK or emoji could not be written at all. If the corpus has too few distinct tokens, the
lowest ids fill the rest. Draft ids are in the order of target ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specflow.data.quarantine import DataError

VOCABULARY_FILE = "vocabulary.safetensors"

BATCH_TOKENS = 1 << 20

Ids = NDArray[np.int64]


class Supervised(Protocol):
    """The part of a tokenised document that is counted."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def supervised(self) -> Sequence[bool]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyMap:
    """``target = draft + d2t[draft]``; ``t2d[target]`` says whether a drafter can propose it."""

    d2t_D: Ids
    """Offsets."""
    t2d_V: NDArray[np.bool_]
    by_rule: int = 0
    """Ids that are in it whatever the corpus says."""
    by_count: int = 0
    filled: int = 0
    """Ids that no training answer has, taken because the corpus has too few distinct tokens."""

    @property
    def target_ids_D(self) -> Ids:
        """Target ids in draft order: unique and increasing."""
        return np.arange(len(self.d2t_D), dtype=np.int64) + self.d2t_D


def count_supervised(documents: Iterable[Supervised], *, vocabulary_size: int) -> Ids:
    """How often each token is supervised; raises :class:`DataError` for ids outside the target's vocabulary."""
    counts_V = np.zeros(vocabulary_size, dtype=np.int64)
    for ids_T in _batches(documents):
        found = np.bincount(ids_T, minlength=vocabulary_size)
        if len(found) > vocabulary_size:
            raise DataError(f"token id {len(found) - 1}, but the target's vocabulary has {vocabulary_size} tokens")
        counts_V += found
    return counts_V


def _batches(documents: Iterable[Supervised]) -> Iterator[Ids]:
    """Supervised ids of many documents at a time: a count over the vocabulary costs as much as many tokens."""
    parts, waiting = [], 0
    for document in documents:
        ids_T = np.asarray(document.ids, dtype=np.int64)[np.asarray(document.supervised, dtype=bool)]
        parts.append(ids_T)
        waiting += len(ids_T)
        if waiting >= BATCH_TOKENS:
            yield np.concatenate(parts)
            parts, waiting = [], 0
    if parts:
        yield np.concatenate(parts)


def build_map(counts_V: Ids, *, size: int, always: Collection[int]) -> VocabularyMap:
    """A draft vocabulary of ``size`` tokens. Equal counts: the lower id goes first.

    Raises :class:`DataError` for a size that cannot hold ``always``, or is no reduction of the target's vocabulary.
    """
    total, required = len(counts_V), np.unique(np.asarray(sorted(always), dtype=np.int64))
    if len(required) and not 0 <= required[0] <= required[-1] < total:
        raise DataError(f"ids that are always included go up to {required[-1]}, the target has {total} tokens")
    if size > total:
        raise DataError(f"a draft vocabulary of {size} tokens, but the target has only {total}: lower `size`")
    if size <= len(required):
        raise DataError(
            f"a draft vocabulary of {size} tokens has no room beside the {len(required)} special, byte-level and "
            "turn-end ids: raise `size`"
        )
    t2d_V = np.zeros(total, dtype=np.bool_)
    t2d_V[required] = True
    room = size - len(required)
    order_V = np.argsort(-counts_V, kind="stable")
    seen = order_V[(counts_V[order_V] > 0) & ~t2d_V[order_V]][:room]
    t2d_V[seen] = True
    filled = np.flatnonzero(~t2d_V)[: room - len(seen)]
    t2d_V[filled] = True
    ids_D = np.flatnonzero(t2d_V)
    made = VocabularyMap(
        d2t_D=ids_D - np.arange(size),
        t2d_V=t2d_V,
        by_rule=len(required),
        by_count=len(seen),
        filled=len(filled),
    )
    check_round_trip(made)
    return made


def check_round_trip(mapping: VocabularyMap) -> None:
    """Raise :class:`DataError` unless offsets and mask say the same."""
    ids_D, total = mapping.target_ids_D, len(mapping.t2d_V)
    problems = []
    if mapping.d2t_D.ndim != 1 or mapping.t2d_V.ndim != 1 or not len(ids_D):
        problems.append("expected one offset per draft token and one truth value per target token")
    elif ids_D.min() < 0 or ids_D.max() >= total:
        problems.append(f"target ids from {ids_D.min()} to {ids_D.max()}, expected 0 to {total - 1}")
    elif not (np.diff(ids_D) > 0).all():
        problems.append("target ids that are not increasing; are these ids instead of offsets?")
    elif not np.array_equal(np.flatnonzero(mapping.t2d_V), ids_D):
        problems.append(f"t2d marks {int(mapping.t2d_V.sum())} tokens, d2t leads to {len(ids_D)}, and they differ")
    if problems:
        raise DataError(f"vocabulary map: {problems[0]}")


def write_map(path: Path, mapping: VocabularyMap) -> None:
    """``d2t`` (int64) and ``t2d`` (bool) as safetensors, under the names that engines read."""
    from safetensors.numpy import save_file

    save_file({"d2t": mapping.d2t_D, "t2d": mapping.t2d_V}, path)


def read_map(path: Path) -> VocabularyMap:
    """A map, checked; ``path`` is the directory of a vocabulary artifact or the file."""
    from safetensors.numpy import load_file

    tensors = load_file(path / VOCABULARY_FILE if path.is_dir() else path)
    mapping = VocabularyMap(d2t_D=tensors["d2t"].astype(np.int64), t2d_V=tensors["t2d"].astype(np.bool_))
    check_round_trip(mapping)
    return mapping


def always_included(tokenizer: Any, end_ids: Collection[int]) -> set[int]:
    """Special ids, turn ends, and every single byte, in whichever form the tokenizer has them."""
    from specflow.data.token_bytes import single_bytes

    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {int(i) for i, token in added.items() if getattr(token, "special", True)}
    special.update(int(i) for i in getattr(tokenizer, "all_special_ids", []))
    return special | single_bytes(tokenizer) | {int(i) for i in end_ids}
