"""Which script a token of an answer is written in, seen in its text: a token may be a part of a character."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

SCRIPTS = (
    "Latin", "Greek", "Cyrillic", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Devanagari", "Bengali",
    "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Tibetan",
    "Myanmar", "Khmer", "Ethiopic", "Mongolian", "Hangul", "Hiragana", "Katakana", "Han",
)  # fmt: skip
ACCENTED, EMOJI, OTHER, COMMON, SPECIAL = (
    "Latin, accented",
    "Emoji",
    "other scripts",
    "digits, signs, spaces",
    "special",
)
BROKEN = "broken UTF-8"


@functools.lru_cache(maxsize=1 << 17)
def script_of(character: str) -> str:
    """The group that a character is counted in."""
    match = _pattern().match(character)
    if match is None:
        return COMMON
    name = str(match.lastgroup)
    if name == "Latin" and not character.isascii():
        return ACCENTED
    return {"Accent": ACCENTED, "Other": OTHER}.get(name, name)


@functools.cache
def _pattern() -> Any:
    import regex

    scripts = "|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS)
    # Digits and # are emoji only together with others; U+FE0F makes one of the sign before it.
    emoji = r"(?P<Emoji>[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\uFE0F])"
    accents = r"(?P<Accent>[\u0300-\u036F])"
    return regex.compile(rf"{scripts}|{emoji}|{accents}|(?P<Other>[\p{{L}}\p{{M}}])")


def scripts_of_tokens(pieces: Sequence[bytes]) -> list[str]:
    """The group of each token of one text, given the bytes of each.

    A token counts in the group of its first character that has a script (or is an emoji), else as digits, signs,
    spaces; a character that is spread over several tokens puts each of them into its group.
    """
    data = b"".join(pieces)
    owner: list[str] = []
    for character in data.decode("utf-8", "surrogateescape"):
        broken = "\udc80" <= character <= "\udcff"
        group = BROKEN if broken else script_of(character)
        owner += [group] * (1 if broken else len(character.encode()))
    groups, start = [], 0
    for piece in pieces:
        mine = owner[start : start + len(piece)]
        groups.append(next((g for g in mine if g != COMMON), COMMON))
        start += len(piece)
    return groups
