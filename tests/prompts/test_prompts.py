"""The shipped prompts: counts, form, balance, and the strict separation of training and held-out."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROMPTS = Path(__file__).resolve().parents[2] / "configs" / "prompts"
LEAST = {"service-train": 900, "service-heldout": 120, "broad-train": 720, "broad-heldout": 96}
TASKS = {
    "service": ["record", "classify", "reply"],
    "broad": ["question", "writing", "summary", "arithmetic", "code", "extraction"],
}
MODULES = ("generate", "prompt_service", "prompt_broad", "prompt_fillers")
SHARED_FIVE_GRAMS = 0.30
"""Largest part of a held-out message's 5-grams of words that may occur in some training message."""


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The generator script, imported from its directory and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(PROMPTS))
    yield importlib.import_module("generate")
    for name in MODULES:
        sys.modules.pop(name, None)


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def asked(rows: list[dict[str, Any]]) -> list[str]:
    """What is asked: the last user message of each row."""
    return [row["messages"][-1]["content"] for row in rows]


def without_asking(texts: list[str], generator: Any) -> list[str]:
    """Broad messages less the ways of asking that both splits share: what is left is the instance."""
    shared = generator.prompt_broad.load("broad-shared")
    texts_of = [text for table in shared.values() for text in table.values() if isinstance(text, str)]
    entries = [line for text in texts_of for line in text.splitlines()]
    pieces = {"What is the difference between"}
    pieces |= {piece.strip() for entry in entries for piece in re.split(r"\{\w+\}", entry) if len(piece.split()) > 1}
    for piece in sorted(pieces, key=len, reverse=True):
        texts = [text.replace(piece, " ") for text in texts]
    return texts


def five_grams(text: str) -> list[tuple[str, ...]]:
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return [tuple(words[i : i + 5]) for i in range(len(words) - 4)]


@pytest.mark.parametrize("name", LEAST)
def test_counts_and_form(name: str) -> None:
    rows = read(name)
    tasks = TASKS[name.split("-")[0]]
    assert len(rows) >= LEAST[name]
    for number, row in enumerate(rows, start=1):
        assert list(row) == ["id", "task", "messages"]
        assert row["id"] == f"{name}-{number:04d}"
        assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "user"]
        assert all(m["content"] == m["content"].strip() != "" for m in row["messages"])
        assert "{" not in asked([row])[0], "an unfilled slot"
    assert set(Counter(row["task"] for row in rows)) == set(tasks)


@pytest.mark.parametrize("name", LEAST)
def test_any_first_rows_are_balanced_over_tasks(name: str) -> None:
    tasks = TASKS[name.split("-")[0]]
    rows = read(name)
    assert [row["task"] for row in rows[:60]] == (tasks * 20)[:60]
    assert len(set(Counter(row["task"] for row in rows).values())) == 1


@pytest.mark.parametrize(("family", "task"), [(family, task) for family, tasks in TASKS.items() for task in tasks])
def test_prompts_of_a_task_share_their_prefix(family: str, task: str) -> None:
    heads = {
        json.dumps(row["messages"][:-1])
        for name in (f"{family}-train", f"{family}-heldout")
        for row in read(name)
        if row["task"] == task
    }
    assert len(heads) == 1


def test_messages_are_short() -> None:
    for name in ("service-train", "service-heldout"):
        for text in asked(read(name)):
            assert 8 <= len(text.split()) <= 40, text
    for name in ("broad-train", "broad-heldout"):
        for text in asked(read(name)):
            assert 4 <= len(text.split()) <= 70, text


@pytest.mark.parametrize("family", TASKS)
def test_every_message_is_unique_and_held_out_is_apart(family: str, generator: Any) -> None:
    train, heldout = asked(read(f"{family}-train")), asked(read(f"{family}-heldout"))
    assert max(Counter(train + heldout).values()) == 1
    if family == "broad":
        train, heldout = without_asking(train, generator), without_asking(heldout, generator)
    known = {gram for text in train for gram in five_grams(text)}
    for text in heldout:
        grams = five_grams(text)
        shared = sum(gram in known for gram in grams) / max(len(grams), 1)
        assert shared <= SHARED_FIVE_GRAMS, f"{shared:.2f} of its 5-grams are in training: {text}"


@pytest.mark.parametrize("family", TASKS)
def test_no_filler_is_in_both_splits(family: str, generator: Any) -> None:
    module = getattr(generator, f"prompt_{family}")
    train, heldout = module.tables("train"), module.tables("heldout")
    assert train.keys() == heldout.keys()
    for kind in train:
        assert len(set(train[kind])) == len(train[kind]), f"repeated filler in {kind}"
        shared = {entry.lower() for entry in train[kind]} & {entry.lower() for entry in heldout[kind]}
        assert not shared, f"{kind}: {sorted(shared)}"


def test_breadth_of_the_service(generator: Any) -> None:
    train, heldout = (generator.prompt_service.tables(split) for split in ("train", "heldout"))
    assert len(train["frames"]) >= 60
    assert len(heldout["frames"]) >= 20
    assert len(train["problems"]) >= 60
    assert len(heldout["problems"]) >= 20
    texts = asked(read("service-train"))
    named = {text.split(",")[0] for text in texts}
    products = {f"{b} {t}" for b in train["brands"] for t in train["types"] if any(f"{b} {t}" in x for x in texts)}
    assert len(named) >= 150
    assert len(products) >= 80


def test_example_of_the_service_is_in_no_table(generator: Any) -> None:
    row = read("service-train")[0]
    example = row["messages"][1]["content"] + row["messages"][2]["content"]
    for split in ("train", "heldout"):
        table = generator.prompt_service.tables(split)
        for kind in ("first_names", "last_names", "brands", "types", "problems", "wants", "orders"):
            assert not [entry for entry in table[kind] if f" {entry.lower()} " in f" {example.lower()} "], kind


def test_generator_gives_the_shipped_bytes(generator: Any) -> None:
    made = generator.files()
    assert sorted(made) == sorted(f"{name}.jsonl" for name in LEAST)
    for name, content in made.items():
        assert (PROMPTS / name).read_bytes() == content, name
    assert generator.main(["--check"]) == 0


def test_check_notices_a_stale_file(generator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generator, "HERE", tmp_path)
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "broad-train.jsonl").write_bytes(b"{}\n")
    assert generator.main(["--check"]) == 1
