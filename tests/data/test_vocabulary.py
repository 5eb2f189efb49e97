"""Draft vocabularies against brute force; what is always in them; coverage by script."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.data.coverage import coverage_table, measure_coverage
from specflow.data.quarantine import DataError
from specflow.data.scripts import scripts_of_tokens
from specflow.data.token_bytes import byte_level_alphabet, token_bytes
from specflow.data.vocabulary import (
    VOCABULARY_FILE,
    VocabularyMap,
    always_included,
    build_map,
    check_round_trip,
    count_supervised,
    read_map,
    write_map,
)
from tests.data.chat_helpers import tokenizer


@dataclass
class Doc:
    ids: list[int]
    supervised: list[bool]


def brute_force(counts: list[int], size: int, always: set[int]) -> list[int]:
    chosen = sorted(always)
    for token in sorted(range(len(counts)), key=lambda t: (-counts[t], t)):
        if len(chosen) < size and counts[token] and token not in chosen:
            chosen.append(token)
    for token in range(len(counts)):
        if len(chosen) < size and token not in chosen:
            chosen.append(token)
    return sorted(chosen)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, set[int]]:
    counts = draw(st.lists(st.integers(0, 4), min_size=2, max_size=40))
    size = draw(st.integers(1, len(counts)))
    always = draw(st.sets(st.integers(0, len(counts) - 1), max_size=size - 1))
    return counts, size, always


@given(cases())
def test_the_map_is_the_rule_and_goes_both_ways(case: tuple[list[int], int, set[int]]) -> None:
    counts, size, always = case
    made = build_map(np.array(counts), size=size, always=always)
    expected = brute_force(counts, size, always)
    assert made.target_ids_D.tolist() == expected
    assert [d + int(made.d2t_D[d]) for d in range(size)] == expected
    assert [t for t in range(len(counts)) if made.t2d_V[t]] == expected
    assert made.d2t_D.tolist() == sorted(made.d2t_D.tolist())  # offsets of increasing ids never fall
    distinct = {t for t, n in enumerate(counts) if n} - always
    assert made.by_rule == len(always)
    assert made.by_count == min(len(distinct), size - len(always))
    assert made.filled == size - made.by_rule - made.by_count


def test_worked_example() -> None:
    counts = np.array([0, 9, 0, 1, 5, 5, 0, 2])
    made = build_map(counts, size=5, always={6})
    assert made.target_ids_D.tolist() == [1, 4, 5, 6, 7]
    assert made.d2t_D.tolist() == [1, 3, 3, 3, 3]
    made = build_map(counts, size=7, always={6})  # only six are known: 0 fills
    assert made.target_ids_D.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert (made.by_rule, made.by_count, made.filled) == (1, 5, 1)


@pytest.mark.parametrize(
    ("size", "always", "said"),
    [
        (9, set(), "of 9 tokens, but the target has only 8"),
        (2, {1, 2}, "no room beside the 2 special"),
        (1, {1, 2}, "no room beside the 2 special"),
        (4, {8}, "go up to 8, the target has 8"),
    ],
)
def test_sizes_that_cannot_be(size: int, always: set[int], said: str) -> None:
    with pytest.raises(DataError, match=said):
        build_map(np.ones(8, dtype=np.int64), size=size, always=always)


def test_only_supervised_tokens_count() -> None:
    documents = [Doc([1, 2, 2, 3], [False, True, True, True]), Doc([3, 0], [True, False]), Doc([5], [False])]
    assert count_supervised(documents, vocabulary_size=6).tolist() == [0, 0, 2, 2, 0, 0]
    with pytest.raises(DataError, match="token id 3, but the target's vocabulary has 3"):
        count_supervised(documents, vocabulary_size=3)


def test_files_come_back_and_spoiled_ones_are_refused(tmp_path: Path) -> None:
    made = build_map(np.array([0, 9, 0, 1, 5, 5, 0, 2]), size=5, always={6})
    write_map(tmp_path / VOCABULARY_FILE, made)
    again = read_map(tmp_path)
    assert (again.d2t_D.tolist(), again.t2d_V.tolist()) == (made.d2t_D.tolist(), made.t2d_V.tolist())
    absolute, off, mask = made.target_ids_D, made.d2t_D + 1, made.t2d_V.copy()
    mask[0] = True
    for spoiled, said in (
        (VocabularyMap(d2t_D=absolute, t2d_V=made.t2d_V), "target ids from 1 to 11"),
        (VocabularyMap(d2t_D=off, t2d_V=made.t2d_V), "target ids from 2 to 8"),
        (VocabularyMap(d2t_D=made.d2t_D, t2d_V=mask), "t2d marks 6 tokens, d2t leads to 5"),
        (VocabularyMap(d2t_D=made.d2t_D[::-1], t2d_V=made.t2d_V), "not increasing"),
    ):
        with pytest.raises(DataError, match=said):
            check_round_trip(spoiled)


def test_a_map_of_real_size_takes_less_than_a_second() -> None:
    counts = np.random.default_rng(0).zipf(1.3, 151_936) - 1
    begin = time.perf_counter()
    made = build_map(counts, size=32_000, always=range(151_643, 151_669))
    assert time.perf_counter() - begin < 1.0
    assert made.t2d_V.sum() == 32_000


def test_special_byte_and_end_tokens_are_always_in() -> None:
    tok = tokenizer()
    always = always_included(tok, {tok.convert_tokens_to_ids("</s>")})
    bytes_ = {tok.convert_tokens_to_ids(c) for c in byte_level_alphabet()}
    special = set(tok.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<|pad|>", "</s>", "<|eot|>"]))
    assert len(bytes_) == 256
    assert bytes_ | special <= always
    assert tok.convert_tokens_to_ids("Ġthe") not in always
    made = build_map(np.zeros(len(tok), dtype=np.int64), size=len(always) + 1, always=always)
    for text in ("naïve café", "漢字", "🙂👍🏽", "Ω"):  # every text can be written in it, if by single bytes
        ids = [tok.convert_tokens_to_ids(c) for byte in text.encode() for c in _visible(byte)]
        assert made.t2d_V[ids].all()
        assert tok.decode(ids) == text


def _visible(byte: int) -> str:
    return next(c for c, b in byte_level_alphabet().items() if b == byte)


def test_bytes_of_tokens_of_both_kinds_of_tokenizers() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tok = tokenizer()
    pieces = token_bytes(tok, len(tok) + 3)
    for text in (" the inner", "naïve 漢字 🙂\n\t", "<|im_end|>"):
        assert b"".join(pieces[i] for i in tok.encode(text, add_special_tokens=False)) == text.encode()
    assert pieces[-3:] == [b""] * 3  # a head may have more rows than the tokenizer has tokens
    names = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁hé", "Ā"]
    core = Tokenizer(
        models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.ByteFallback()
    other = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<unk>")
    pieces = token_bytes(other, len(names))
    assert [pieces[11], pieces[257], pieces[258]] == [b"\n", " hé".encode(), "Ā".encode()]
    assert always_included(other, {0}) == set(range(257))


@pytest.mark.parametrize(
    ("pieces", "groups"),
    [
        (["Hello", " wor", "ld", "!"], ["Latin", "Latin", "Latin", "digits, signs, spaces"]),
        (["na", "ï", "ve"], ["Latin", "Latin, accented", "Latin"]),
        (["e", "\u0301"], ["Latin", "Latin, accented"]),
        (["42", " ", "漢字", "かな", "カナ"], ["digits, signs, spaces"] * 2 + ["Han", "Hiragana", "Katakana"]),
        (["привет", "Ω", "שלום", "مرحبا", "हिन्दी"], ["Cyrillic", "Greek", "Hebrew", "Arabic", "Devanagari"]),
        (["👍🏽", "❤\ufe0f", "\ufe0f", "ᚠ"], ["Emoji", "Emoji", "Emoji", "other scripts"]),
    ],
)  # fmt: skip
def test_scripts(pieces: list[str], groups: list[str]) -> None:
    assert scripts_of_tokens([p.encode() for p in pieces]) == groups


def test_parts_of_a_character_are_of_its_script() -> None:
    han, face = "漢".encode(), "🙂".encode()
    assert scripts_of_tokens([b" " + han[:1], han[1:2], han[2:] + b"."]) == ["Han"] * 3
    assert scripts_of_tokens([face[:1], face[1:], b"", b"\xff", b"a"]) == [
        "Emoji", "Emoji", "digits, signs, spaces", "broken UTF-8", "Latin",
    ]  # fmt: skip


def test_coverage_is_counted_over_supervised_tokens_by_script() -> None:
    pieces: list[bytes] = [b"a", b"b", "漢".encode()[:2], "漢".encode()[2:], "é".encode(), b"<end>", b"7"]
    t2d = np.array([True, False, True, False, False, True, True])
    documents = [
        Doc([1, 0, 0, 1, 2, 3, 5], [False, True, True, True, True, True, True]),
        Doc([4, 6, 0], [True, True, False]),
    ]
    found = measure_coverage(documents, t2d, pieces=pieces, special={5})
    expected: dict[str, Any] = {
        "Latin": {"tokens": 3, "covered": 2},
        "Han": {"tokens": 2, "covered": 1},
        "Latin, accented": {"tokens": 1, "covered": 0},
        "digits, signs, spaces": {"tokens": 1, "covered": 1},
        "special": {"tokens": 1, "covered": 1},
        "all": {"tokens": 8, "covered": 5},
    }
    assert found.as_json() == expected
    assert found.missing == {1: 1, 3: 1, 4: 1}
    table = coverage_table(found, measure_coverage([], t2d, pieces=pieces, special={5}))
    assert [line.split("  ")[0] for line in table.splitlines()] == ["script", *expected]
    assert table.splitlines()[1].split()[1:] == ["3", "66.67", "%", "0", "–"]


def test_a_character_cut_by_the_border_of_a_run_is_not_joined() -> None:
    """What is not supervised between two runs does not complete a character."""
    pieces = ["漢".encode()[:2], "漢".encode()[2:]]
    found = measure_coverage([Doc([0, 1], [True, False])], np.array([True, True]), pieces=pieces, special=())
    assert found.as_json()["broken UTF-8"] == {"tokens": 1, "covered": 1}
