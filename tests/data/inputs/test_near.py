"""Nearly equal rows against brute force over all pairs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specflow.data.inputs import near
from specflow.data.inputs.signatures import PERMUTATIONS, bands_for, mixed, signature, triples
from specflow.data.inputs.table import groups
from tests.data.inputs.helpers import asked, lines, message, prepared, set_aside, source


def jaccard(one: str, two: str) -> float:
    a, b = (set(triples([message("user", text)])) for text in (one, two))
    return len(a & b) / len(a | b)


def varied(text: str, changes: int, random_: random.Random) -> str:
    words = text.split()
    for place in random_.sample(range(len(words)), changes):
        words[place] = f"v{random_.randrange(10**6)}"
    return " ".join(words)


def corpus(seed: int) -> list[str]:
    """Texts of 80 words, each with some that differ in up to ten words."""
    random_ = random.Random(seed)
    made = []
    for _ in range(30):
        first = " ".join(f"w{random_.randrange(10**6)}" for _ in range(80))
        made += [first, *(varied(first, random_.randint(1, 10), random_) for _ in range(3))]
    random_.shuffle(made)
    return made


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_judged_as_brute_force_over_signatures_does(tmp_path: Path, seed: int) -> None:
    texts, threshold = corpus(seed), 0.75
    held, train = texts[:20], texts[20:]
    made = prepared(
        tmp_path,
        [source(lines(tmp_path / "t.jsonl", [asked(t) for t in train]))],
        [source(lines(tmp_path / "h.jsonl", [asked(t) for t in held]))],
        near_duplicates=threshold,
    )
    signatures = [np.array(signature([message("user", t)])) for t in texts]
    similar = [[float((a == b).mean()) for b in signatures] for a in signatures]
    expected = []
    for i in range(len(held), len(texts)):
        twins = [j for j in range(i) if similar[i][j] >= threshold]
        if twins:
            expected.append((i - len(held) + 1, "near_heldout" if twins[0] < len(held) else "near_duplicate"))
    assert len(expected) > 15
    assert set_aside(made) == expected


def test_signatures_estimate_the_jaccard_index() -> None:
    texts = corpus(7)
    pairs = [(a, b) for i, a in enumerate(texts) for b in texts[:i] if jaccard(a, b) > 0.1]
    errors = []
    for a, b in pairs:
        one, two = (np.array(signature([message("user", t)])) for t in (a, b))
        errors.append(float((one == two).mean()) - jaccard(a, b))
    assert len(errors) > 100
    assert abs(np.mean(errors)) < 0.02
    assert np.max(np.abs(errors)) < 4 * 0.5 / PERMUTATIONS**0.5


def test_close_prompts_of_the_two_splits(tmp_path: Path) -> None:
    question = "Please tell me in which year the old bridge across the river was built and who paid for it"
    rows = [question + "!", question.upper(), question.replace("old", "new"), "Something else entirely"]
    made = prepared(
        tmp_path,
        [source(lines(tmp_path / "t.jsonl", [asked(t) for t in rows]))],
        [source(lines(tmp_path / "h.jsonl", [asked(question)]))],
        near_duplicates=0.8,
    )
    # One word of nineteen is in three of seventeen triples: an index of 14/20.
    assert jaccard(question, rows[2]) == pytest.approx(0.7)
    assert set_aside(made) == [(1, "near_heldout"), (2, "near_heldout")]
    assert made.kept == 3


def test_what_all_prompts_share_in_their_head_does_not_count(tmp_path: Path) -> None:
    head = message("system", "The same long instructions for every one of the prompts of this service. " * 5)
    rows = [{"messages": [head, message("user", t)]} for t in ("my lamp is broken", "where is my parcel now")]
    made = prepared(tmp_path, [source(lines(tmp_path / "t.jsonl", rows))], near_duplicates=0.5)
    assert not set_aside(made)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c d", ["a b c", "b c d"]),
        ("One, two!", ["one two"]),
        ("???", ["???"]),
        ("日本語です", ["日 本 語", "本 語 で", "語 で す"]),
        ("Ünïcode ÜBER alles", ["ünïcode über alles"]),
    ],
)
def test_triples(text: str, expected: list[str]) -> None:
    assert triples([message("system", "s"), message("user", text)]) == expected


@pytest.mark.parametrize("threshold", [0.31, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_meet_at_the_threshold(threshold: float) -> None:
    count, width = bands_for(threshold)
    assert count * width <= PERMUTATIONS
    assert 1 - (1 - threshold**width) ** count >= 0.99
    wider = PERMUTATIONS // (width + 1)
    assert threshold == 1.0 or 1 - (1 - threshold ** (width + 1)) ** wider < 0.99


@pytest.mark.parametrize("part_rows", [1, 3, 1000])
def test_groups_are_those_of_a_dictionary(part_rows: int) -> None:
    random_ = np.random.default_rng(0)
    keys = random_.integers(0, 12, size=(60, 2)).astype(np.uint64)
    pieces: list[tuple[int, Any]] = [(0, keys[:7]), (7, keys[7:7]), (7, keys[7:50]), (50, keys[50:])]
    expected: dict[tuple[int, ...], list[int]] = {}
    for place, key in enumerate(keys.tolist()):
        if key[0]:
            expected.setdefault(tuple(key), []).append(place)
    found = sorted(group.tolist() for group in groups(lambda: iter(pieces), part_rows=part_rows))
    assert found == sorted(places for places in expected.values() if len(places) > 1)


def test_large_groups_are_compared_with_their_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "COMPARED", 2)
    monkeypatch.setattr(near, "BLOCK_ROWS", 3)
    rows = [asked("the same words again and again and again in each of the rows" + "!" * n) for n in range(20)]
    made = prepared(tmp_path, [source(lines(tmp_path / "t.jsonl", rows))], near_duplicates=0.8)
    assert set_aside(made) == [(n, "near_duplicate") for n in range(2, 21)]


def test_mixing_is_a_bijection_of_nearby_numbers() -> None:
    made = mixed(np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(made)) == 100_000
    assert mixed(np.array([0], dtype=np.uint64))[0] == np.uint64(0xE220A8397B1DCDAF)  # SplitMix64's first output
