"""MinHash signatures of prompts, and the bands by which similar ones meet (Broder 1997; Leskovec et al., chapter 3).

The similarity of two prompts is the Jaccard index of their sets of word triples; the share of equal places in two
signatures estimates it, with a standard error of at most ``0.5 / sqrt(PERMUTATIONS)``. Two prompts are compared if all
hashes of one of their bands are equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from specflow.data.conversations import HEAD, Message

PERMUTATIONS: Final = 128
SEED: Final = 1
WORDS: Final = 3
RECALL: Final = 0.99
"""Of the pairs at the threshold, the share that is to be compared."""

# Scripts that put no spaces between words: each character counts as a word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
WORD: Final = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+")

Signatures = np.ndarray[Any, np.dtype[np.uint32]]
Keys = np.ndarray[Any, np.dtype[np.uint64]]


class Bands(NamedTuple):
    number: int
    width: int


def bands_for(threshold: float) -> Bands:
    """The widest bands by which a pair at ``threshold`` still meets with probability ``RECALL``."""
    for width in range(PERMUTATIONS, 1, -1):
        count = PERMUTATIONS // width
        if 1 - (1 - threshold**width) ** count >= RECALL:
            return Bands(count, width)
    return Bands(PERMUTATIONS, 1)


def triples(messages: Sequence[Message]) -> list[str]:
    """Three words in a row, of everything but the head, which all prompts of a service share. Never empty."""
    text = "\n".join(m["content"] for m in messages if m["role"] not in HEAD).casefold()
    words = WORD.findall(text) or text.split()
    if len(words) <= WORDS:
        return [" ".join(words)]
    return [" ".join(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)]


def signature(messages: Sequence[Message]) -> list[int]:
    """``PERMUTATIONS`` whole numbers of 32 bits."""
    from rensa import RMinHash

    made = RMinHash(num_perm=PERMUTATIONS, seed=SEED)
    made.update(triples(messages))
    values: list[int] = made.digest()
    return values


def band_keys(signatures_NP: Signatures, bands: Bands) -> Keys:
    """``[bands, N]``: one hash per band and row."""
    used = signatures_NP[:, : bands.number * bands.width].reshape(-1, bands.number, bands.width).astype(np.uint64)
    keys = np.zeros(used.shape[:2], dtype=np.uint64)
    for place in range(bands.width):
        keys = mixed(keys ^ used[:, :, place])
    return np.ascontiguousarray(keys.T)


def mixed(values: Keys) -> Keys:
    """A bijection of 64-bit numbers that spreads every bit over all of them (the finaliser of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Signer:
    """Collects the signatures of a chunk; does nothing without a threshold."""

    def __init__(self, threshold: float | None) -> None:
        self._bands = None if threshold is None else bands_for(threshold)
        self._signatures: list[Signatures] = []

    def add(self, messages: Sequence[Message]) -> None:
        if self._bands is not None:
            self._signatures.append(np.array(signature(messages), dtype=np.uint32))

    def write(self, signatures: Path, bands: Path) -> None:
        """``[N, PERMUTATIONS]`` of 32 bits and ``[bands, N]`` of 64 bits."""
        if self._bands is not None:
            made = np.array(self._signatures, dtype=np.uint32).reshape(-1, PERMUTATIONS)
            made.tofile(signatures)
            band_keys(made, self._bands).tofile(bands)
