"""Sources to prompts: order, ids, limits, comparison, mixture; the same for any number of workers and any chunks."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specflow.config.inputs import PromptSource
from specflow.data.inputs.drawing import alternating, shares_of
from specflow.data.inputs.prepared import Prepared
from specflow.data.quarantine import DataError
from tests.data.inputs.helpers import asked, lines, message, prepared, set_aside, source, texts


def everything(made: Prepared) -> list[Any]:
    """All that a result holds."""
    return [*made.rows(), *made.quarantined(), json.dumps(made.summary())]


def test_bad_rows_are_set_aside_with_line_reason_and_id(tmp_path: Path) -> None:
    rows = [asked("a"), [], {"messages": [], "id": "x"}, asked("b"), {"messages": [message("user", None)], "id": 7}]
    made = prepared(tmp_path, [source(lines(tmp_path / "p.jsonl", rows))])
    assert [(prompt.row, prompt.messages[0]["content"]) for prompt in made.rows()] == [(1, "a"), (4, "b")]
    found = [(row.row, row.reason, row.id) for row in made.quarantined()]
    assert found == [(2, "not_an_object", None), (3, "empty_messages", "x"), (5, "content_not_a_string", "7")]
    assert (made.total, made.kept) == (5, 2)
    assert made.summary()["set_aside"] == {"content_not_a_string": 1, "empty_messages": 1, "not_an_object": 1}


def test_ids_are_the_rows_own_or_say_where_they_stand(tmp_path: Path) -> None:
    one = lines(tmp_path / "p.jsonl", [asked("a", id="own"), asked("b"), asked("c", id=3), asked("d", id=None)])
    two = lines(tmp_path / "other" / "p.jsonl", [asked("e"), asked("f", key="k1")])
    held = lines(tmp_path / "h.jsonl", [asked("g")])
    made = prepared(tmp_path, [source(one), source(two, fields={"id": "key"})], [source(held)])
    assert [(prompt.split, prompt.id) for prompt in made.rows()] == [
        ("train", "own"),
        ("train", "train/k/p/00002"),
        ("train", "3"),
        ("train", "train/k/p/00004"),
        ("train", "train/k/p-2/00001"),
        ("train", "k1"),
        ("heldout", "heldout/k/h/00001"),
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 20])
def test_limit_counts_rows_usable_or_not(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(["", json.dumps(asked("a")), "[]", "", json.dumps(asked("b")), json.dumps(asked("c"))]))
    for limit, expected in ((1, ["a"]), (2, ["a"]), (3, ["a", "b"]), (4, ["a", "b", "c"]), (9, ["a", "b", "c"])):
        made = prepared(tmp_path, [source(path, limit=limit)], chunk_bytes=chunk_bytes)
        assert texts(made) == expected
        assert made.total == min(limit, 4)
        assert set_aside(made) == [(3, "not_an_object")] * (limit > 1)


def test_a_file_without_one_usable_row_is_an_error(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [[asked("a")], []])
    with pytest.raises(
        DataError, match=r"none of 2 rows is a usable prompt; the first bad one is line 1: not_an_object \(list\)"
    ):
        prepared(tmp_path, [source(path)])


def test_heldout_rows_never_train_and_equal_rows_are_dropped(tmp_path: Path) -> None:
    def made(**params: Any) -> Prepared:
        one = lines(tmp_path / "t.jsonl", [asked("one", id="a"), asked("two", id="b"), asked("three", id="a")])
        two = lines(tmp_path / "u.jsonl", [asked("one", id="c"), asked("four", id="h"), asked("five")])
        held = lines(tmp_path / "h.jsonl", [asked("two", id="h"), asked("six"), asked("six")])
        return prepared(tmp_path, [source(one), source(two)], [source(held)], **params)

    assert texts(made()) == ["one", "four", "five", "two", "six"]
    assert set_aside(made()) == [
        (2, "also_heldout"),
        (3, "repeated_id"),
        (1, "duplicate"),
        (3, "duplicate"),
    ]
    assert [row.detail for row in made().quarantined()] == [
        "the same messages are held out: h.jsonl:1",
        "first used at t.jsonl:1",
        "the same messages as t.jsonl:1",
        "the same messages as h.jsonl:2",
    ]
    assert texts(made(duplicates="keep")) == ["one", "one", "four", "five", "two", "six", "six"]


@pytest.mark.parametrize("chunk_bytes", [60, 1 << 20])
def test_an_id_of_two_sources_is_told_apart_by_the_source(tmp_path: Path, chunk_bytes: int) -> None:
    one = lines(tmp_path / "a.jsonl", [asked("a0", id=0), asked("a1", id=1), asked("a1 again", id=1)])
    two = lines(tmp_path / "b.jsonl", [asked("a0", id=2), asked("b1", id=1), asked("b", id=5), asked("b0", id=0)])
    held = lines(tmp_path / "h.jsonl", [asked("h0", id=0)])
    made = prepared(tmp_path, [source(one), source(two)], [source(held)], chunk_bytes=chunk_bytes)
    assert [(prompt.id, prompt.messages[0]["content"]) for prompt in made.rows()] == [
        ("train/k/a:0", "a0"),
        ("1", "a1"),
        ("train/k/b:1", "b1"),
        ("5", "b"),
        ("train/k/b:0", "b0"),
        ("0", "h0"),
    ]
    assert set_aside(made) == [(3, "repeated_id"), (1, "duplicate")]


def talk(*texts: str) -> dict[str, Any]:
    """Turns of the user and of the assistant by turns."""
    return {"messages": [message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]}


@pytest.mark.parametrize("chunk_bytes", [60, 1 << 20])
def test_no_turn_that_the_target_answers_is_also_held_out(tmp_path: Path, chunk_bytes: int) -> None:
    rows = [
        talk("u1", "a", "other"),  # begins with a held-out question
        talk("u2", "another answer", "u3"),  # asks what the held-out one asks, on top of the target's own answers
        talk("u3"),  # is asked on top of u2 only
        talk("u2"),
        talk("free", "a", "u1"),  # on top of another turn
        {"messages": [message("system", "s"), message("user", "u1")]},
        {**talk("u1"), "tools": [{"name": "f"}]},
    ]
    held = [talk("u1"), talk("u2", "a", "u3")]
    sources = [source(lines(tmp_path / "t.jsonl", rows))], [source(lines(tmp_path / "h.jsonl", held))]
    made = prepared(tmp_path, *sources, chunk_bytes=chunk_bytes, every_turn=True)
    assert set_aside(made) == [(1, "turn_also_heldout"), (2, "turn_also_heldout"), (4, "turn_also_heldout")]
    assert next(made.quarantined()).detail == "one of its turns is asked as one of the held-out h.jsonl:1"
    # Where only the last turn is the target's, the earlier ones are context.
    assert set_aside(prepared(tmp_path, *sources, chunk_bytes=chunk_bytes)) == []


def test_turns_around_a_tool_are_what_is_asked(tmp_path: Path) -> None:
    call = message("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": {}}}])
    result = message("tool", "42")
    held = {"messages": [message("user", "u"), call, result, message("assistant", "a"), message("user", "v")]}
    rows = [
        {"messages": [message("user", "u"), call, result]},
        asked("u"),  # this is not asked of the held-out row: its call stays as it is
    ]
    sources = [source(lines(tmp_path / "t.jsonl", rows))], [source(lines(tmp_path / "h.jsonl", [held]))]
    assert set_aside(prepared(tmp_path, *sources, every_turn=True)) == [(1, "turn_also_heldout")]


@pytest.mark.parametrize("near_duplicates", [None, 0.8])
def test_rows_of_another_thinking_mode_are_equal_to_held_out_ones_only(
    tmp_path: Path, near_duplicates: float | None
) -> None:
    rows = [asked("one two three four five"), asked("held out in the other mode"), asked("own mode", thinking=None)]
    path = lines(tmp_path / "t.jsonl", [*rows, rows[0]])
    held = lines(tmp_path / "h.jsonl", [asked("held out in the other mode", thinking=True)])
    train = [source(path, thinking=thinking) for thinking in (True, False, None)]
    made = prepared(tmp_path, train, [source(held)], near_duplicates=near_duplicates)
    found = [(prompt.messages[0]["content"], prompt.thinking) for prompt in made.rows()]
    assert found == [
        *[(text, mode) for mode in (True, False, None) for text in ("one two three four five", "own mode")],
        ("held out in the other mode", True),
    ]
    assert set_aside(made) == [(2, "also_heldout"), (4, "duplicate")] * 3


def test_equal_are_messages_and_tools_whatever_the_order_of_keys(tmp_path: Path) -> None:
    f, g = {"name": "f", "x": 1}, {"x": 1, "name": "f"}
    rows = [asked("a"), asked("a", tools=[f]), {"tools": [g], "messages": [{"content": "a", "role": "user"}]}]
    made = prepared(tmp_path, [source(lines(tmp_path / "p.jsonl", rows))])
    assert set_aside(made) == [(3, "duplicate")]


def test_characters_are_limited(tmp_path: Path) -> None:
    rows = [{"messages": [message("system", "s"), message("user", "x" * n)]} for n in range(1, 6)]
    made = prepared(tmp_path, [source(lines(tmp_path / "p.jsonl", rows))], min_characters=3, max_characters=5)
    assert texts(made) == ["xx", "xxx", "xxxx"]
    assert set_aside(made) == [(1, "too_few_characters"), (5, "too_many_characters")]


def test_text_without_a_utf8_form_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "\\ud800"}], "id": "\\ud800"}\n' + json.dumps(asked("a"))
    )
    made = prepared(tmp_path, [source(path)])
    assert [(row.row, row.reason, row.id) for row in made.quarantined()] == [(1, "not_unicode", "\\ud800")]
    assert texts(made) == ["a"]


@given(
    available=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    weights=st.none() | st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.5, 7.0]), min_size=4, max_size=4),
    rows=st.none() | st.integers(1, 60),
)
@example(available=[1, 3], weights=[0.1, 0.3, 0.1, 0.1], rows=None)
def test_shares_follow_the_weights_and_use_no_row_twice(
    available: list[int], weights: list[float] | None, rows: int | None
) -> None:
    weights = weights and weights[: len(available)]
    counts = shares_of(available, weights, rows)
    assert all(0 <= count <= there for count, there in zip(counts, available, strict=True))
    if weights is None:
        assert sum(counts) == min(sum(available), rows or sum(available))
        return
    whole, total = sum(weights), sum(counts)
    assert all(abs(count - weight / whole * total) < 1 for count, weight in zip(counts, weights, strict=True))
    # As large as the weights allow: one row more in proportion, and a source would be short.
    if rows is None or total < rows:
        more = total + 1
        assert any(weight / whole * more > there + 1e-9 for weight, there in zip(weights, available, strict=True))


def test_sources_alternate_in_proportion() -> None:
    assert list(alternating([2, 4])) == [1, 0, 1, 1, 0, 1]
    assert list(alternating([3])) == [0, 0, 0]
    assert list(alternating([0, 2])) == [1, 1]
    assert list(alternating([])) == []


def test_a_mixture_by_weight_draws_by_seed_and_keeps_the_order_of_its_sources(tmp_path: Path) -> None:
    one = lines(tmp_path / "a.jsonl", [asked(f"a{i:03d}") for i in range(100)])
    two = lines(tmp_path / "b.jsonl", [asked(f"b{i:03d}") for i in range(300)])

    def drawn(first: float = 1, second: float = 2, **params: Any) -> list[str]:
        return texts(prepared(tmp_path, [source(one, weight=first), source(two, weight=second)], **params))

    whole = drawn()
    assert len(whole) == 300
    assert [t for t in whole if t[0] == "a"] == [f"a{i:03d}" for i in range(100)]
    chosen = [t for t in whole if t[0] == "b"]
    assert chosen == sorted(chosen)
    assert len(set(chosen)) == 200
    assert all(abs(sum(t[0] == "a" for t in whole[:n]) - n / 3) <= 1 for n in range(300))
    assert drawn() == whole
    assert drawn(seed=1) != whole
    part = drawn(rows=30)
    assert len(part) == 30
    # A smaller mixture with the same seed is part of the larger one.
    assert set(part) <= set(whole)
    made = prepared(tmp_path, [source(one, weight=1), source(two, weight=2)])
    assert [(c.kept, c.not_drawn) for c in made.counts] == [(100, 0), (200, 100)]
    assert not set_aside(made)


def test_drawing_does_not_depend_on_where_rows_stand(tmp_path: Path) -> None:
    rows = [asked(f"q{i}") for i in range(200)]
    made = prepared(tmp_path, [source(lines(tmp_path / "p.jsonl", rows))], rows=50)
    turned = prepared(tmp_path, [source(lines(tmp_path / "p.jsonl", rows[::-1]))], rows=50)
    assert len(texts(made)) == 50
    assert texts(made) == texts(turned)[::-1]


def test_all_sources_of_a_split_have_weights_or_none() -> None:
    from specflow.config.inputs import weights_problem

    files = [source(Path("a"), weight=1), source(Path("b"))]
    assert weights_problem(tuple(files)) == "source 1 has no weight, others have one"
    assert weights_problem((files[0], files[0])) is None
    assert weights_problem((files[1], files[1])) is None


def corpus(folder: Path, seed: int) -> tuple[list[PromptSource], list[PromptSource]]:
    """Three files with equal, nearly equal, bad and held-out rows, and empty lines."""
    random_ = random.Random(seed)
    words = [f"w{i}" for i in range(50)]
    made: list[Path] = []
    pool = [" ".join(random_.choices(words, k=random_.randint(1, 30))) for _ in range(40)]
    for name in ("a", "b", "h"):
        text = []
        for i in range(random_.randint(20, 60)):
            chosen = random_.choice(pool) + random_.choice(["", "", " " + random_.choice(words)])
            row: Any = random_.choice([asked(chosen), asked(chosen, id=f"{name}{i // 2}"), asked(""), []])
            text.append(random_.choice(["", json.dumps(row), json.dumps(row), json.dumps(row)]))
        path = folder / f"{name}.jsonl"
        path.write_text("\n".join([json.dumps(asked(f"first of {name}")), *text]))
        made.append(path)
    weights = random_.choice([(None, None), (1.0, 3.0)])
    limit = random_.choice([None, 25])
    train = [source(path, weight=weight, limit=limit) for path, weight in zip(made[:2], weights, strict=True)]
    return train, [source(made[2])]


@pytest.mark.parametrize("seed", range(6))
def test_the_result_does_not_depend_on_the_chunks(tmp_path: Path, seed: int) -> None:
    train, heldout = corpus(tmp_path, seed)
    params = {"near_duplicates": 0.7 if seed % 2 else None, "duplicates": "keep" if seed % 3 == 0 else "drop"}
    whole = everything(prepared(tmp_path, train, heldout, **params))
    assert len(whole) > 10
    for chunk_bytes in (300, 1000):
        cut = prepared(tmp_path, train, heldout, chunk_bytes=chunk_bytes, **params)
        assert everything(cut) == whole


def test_the_result_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    train, heldout = corpus(tmp_path, 1)
    one, *others = (
        everything(prepared(tmp_path, train, heldout, chunk_bytes=500, near_duplicates=0.7, workers=workers))
        for workers in (1, 2, 3)
    )
    assert all(other == one for other in others)


def test_a_failure_in_a_worker_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join([json.dumps(asked(f"q{i}")) for i in range(50)] + ["{oops"]))
    with pytest.raises(DataError, match=r"p\.jsonl:51: expected one JSON object"):
        prepared(tmp_path, [source(path)], chunk_bytes=300, workers=2)


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    import tracemalloc

    def peak(rows: int) -> int:
        words = random.Random(0).choices([f"w{i}" for i in range(500)], k=40 * rows)
        texts: Sequence[str] = [" ".join(words[40 * i : 40 * i + 40]) for i in range(rows)]
        path = lines(tmp_path / f"{rows}.jsonl", [asked(text) for text in texts])
        del texts, words
        tracemalloc.start()
        try:
            made = prepared(tmp_path, [source(path)], chunk_bytes=1 << 16, near_duplicates=0.8)
            assert sum(1 for _ in made.rows()) == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)  # imports, caches
    small, large = peak(500), peak(2000)
    # 1500 rows more are 350 kB of text. What is kept of a row: nine bytes, and while they are sorted 40 more.
    assert large - small < 1500 * 100
