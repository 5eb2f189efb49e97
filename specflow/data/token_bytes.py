"""The bytes that each token of a tokenizer stands for.

Byte-level tokenizers write a byte as one visible character; others write text as it is, a space as ``▁`` and single
bytes as ``<0x0A>``. Bytes, not text: a token may hold a part of a character.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@functools.cache
def byte_level_alphabet() -> dict[str, int]:
    """The visible character of every byte: itself where it is printable Latin-1, else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


def token_bytes(tokenizer: Any, size: int) -> list[bytes]:
    """For ids 0 .. ``size`` - 1; empty for ids that the tokenizer does not have."""
    added = {int(i): str(token) for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    byte_level = _is_byte_level(tokenizer)
    found = [b""] * size
    for name, i in tokenizer.get_vocab().items():
        if i < size:
            found[i] = added[i].encode() if i in added else _bytes(name, byte_level)
    return found


def single_bytes(tokenizer: Any) -> set[int]:
    """Ids of the tokens that stand for one byte each, so that any text can be written with them."""
    known = tokenizer.get_vocab()
    names = byte_level_alphabet() if _is_byte_level(tokenizer) else [f"<0x{b:02X}>" for b in range(256)]
    return {int(known[name]) for name in names if name in known}


def _is_byte_level(tokenizer: Any) -> bool:
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    return '"ByteLevel"' in json.dumps([parts.get("pre_tokenizer"), parts.get("decoder")])


def _bytes(name: str, byte_level: bool) -> bytes:
    if byte_level:
        alphabet = byte_level_alphabet()
        return b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in name)
    single = BYTE_TOKEN.fullmatch(name)
    return bytes([int(single.group(1), 16)]) if single else name.replace("▁", " ").encode()
