"""What regenerate reads: prompts of sources of several forms, and what is known before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.config.regenerate import RegenerateParams
from specflow.data.quarantine import DataError
from specflow.stages import prompts, regenerate
from tests.stages.pipeline_helpers import FakeContext, write_lines


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def params(root: Path, train: list[Any], heldout: list[Any] | None = None, **more: Any) -> RegenerateParams:
    files = {"train": train, "heldout": heldout or [asked("held")]}
    sources = {s: [{"path": write_lines(root / f"{s}.jsonl", rows), "kind": "k"}] for s, rows in files.items()}
    return RegenerateParams.model_validate({**sources, **more})


def test_prompts_of_several_forms_and_formats(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "shared"}, {"from": "gpt", "value": "answer"}]
    pairs = tmp_path / "pairs.json"
    pairs.write_text(json.dumps([{"instruction": "paired", "output": "answer"}]))
    section = RegenerateParams.model_validate(
        {
            "train": [
                {"path": write_lines(tmp_path / "a.jsonl", [{"conversations": turns}]), "kind": "a"},
                {"path": pairs, "kind": "b", "thinking": True},
            ],
            "heldout": [{"path": write_lines(tmp_path / "h.jsonl", [asked("held")]), "kind": "a"}],
        }
    )
    assert regenerate.check(section) == []
    context = FakeContext(tmp_path / "work")
    made = prompts.read_prompts(section, context)
    summary = made.summary()
    found = [(p.id, p.split, p.kind, p.messages, p.thinking) for p in made.rows()]
    assert found == [
        ("train/a/a/00001", "train", "a", [{"role": "user", "content": "shared"}], None),
        ("train/b/pairs/00001", "train", "b", [{"role": "user", "content": "paired"}], True),
        ("heldout/a/h/00001", "heldout", "a", [{"role": "user", "content": "held"}], None),
    ]
    assert [(s["source"], s["form"], s["kept"]) for s in summary["sources"]] == [
        ("a.jsonl", "sharegpt", 1),
        ("pairs.json", "pairs", 1),
        ("h.jsonl", "messages", 1),
    ]
    assert context.messages == [
        "a.jsonl: rows of the form sharegpt, by their keys",
        "pairs.json: rows of the form pairs, by their keys",
    ]
    assert str(tmp_path) not in json.dumps(summary)


def test_too_many_bad_rows_fail_and_name_the_reason_that_dominates(tmp_path: Path) -> None:
    rows = [asked(f"q{i}") for i in range(20)] + [{"messages": []}] * 2 + [asked(" ")]
    section = params(tmp_path, rows, max_skipped=0.12)
    with pytest.raises(DataError, match=r"3 of 24 rows \(12\.5%\).*Most often empty_messages \(2 rows\)"):
        prompts.read_prompts(section, FakeContext(tmp_path / "work"))
    (problem,) = regenerate.check(section)
    assert problem.where == "train"
    assert "Most often empty_messages (2 rows)" in problem.found
    section = params(tmp_path, rows, max_skipped=0.13)
    assert regenerate.check(section) == []
    made = prompts.read_prompts(section, FakeContext(tmp_path / "work"))
    assert [row.row for row in made.quarantined()] == [21, 22, 23]
    assert made.summary()["set_aside"] == {"empty_content": 1, "empty_messages": 2}


def test_equal_rows_and_short_ones_are_no_defects(tmp_path: Path) -> None:
    section = params(tmp_path, [asked("the same")] * 5 + [asked("x")], inputs={"min_characters": 2}, max_skipped=0.0)
    assert regenerate.check(section) == []
    made = prompts.read_prompts(section, FakeContext(tmp_path / "work"))
    assert (len(list(made.rows())), made.total) == (2, 7)
    assert made.summary()["set_aside"] == {"duplicate": 4, "too_few_characters": 1}
    assert regenerate.estimate(section).note.startswith("2 prompts,")


def test_a_split_without_a_row_is_an_error_before_and_in_the_run(tmp_path: Path) -> None:
    section = params(tmp_path, [asked("held"), asked("held")], max_skipped=1.0)
    (problem,) = regenerate.check(section)
    assert problem.found == "train: no row is left. Set aside by reason: train.jsonl: {'also_heldout': 2} of 2 rows"
    with pytest.raises(DataError, match="train: no row is left"):
        prompts.read_prompts(section, FakeContext(tmp_path / "work"))


def test_a_weighted_source_without_a_row_to_draw_is_an_error(tmp_path: Path) -> None:
    files = {
        "good": write_lines(tmp_path / "good.jsonl", [asked("a"), asked("b")]),
        "same": write_lines(tmp_path / "same.jsonl", [asked("a"), asked("b")]),
        "held": write_lines(tmp_path / "held.jsonl", [asked("held")]),
    }
    train = [{"path": files[name], "kind": "k", "weight": 2} for name in ("good", "same")]
    section = RegenerateParams.model_validate({"train": train, "heldout": [{"path": files["held"], "kind": "k"}]})
    said = r"same\.jsonl \(train\): the source has weight 2 and no row left to draw.* \{'duplicate': 2\}"
    with pytest.raises(DataError, match=said):
        prompts.read_prompts(section, FakeContext(tmp_path / "work"))
    (problem,) = regenerate.check(section)
    assert problem.found.startswith("same.jsonl (train): the source has weight 2")


def test_only_the_first_rows_are_looked_at_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LOOKED_AT", 4)
    section = params(tmp_path, [asked("a"), {"messages": []}, asked("b"), asked("c"), asked("d")])
    # Of five rows the four seen are too bad, but the whole may be good enough.
    assert regenerate.check(section) == []
    assert prompts.expected_rows(section) == (4, "at least ")
    with pytest.raises(DataError, match="1 of 6 rows"):
        prompts.read_prompts(section, FakeContext(tmp_path / "work"))


def test_a_dataset_of_the_hub_is_not_fetched_before_the_run(tmp_path: Path) -> None:
    held = write_lines(tmp_path / "h.jsonl", [asked("held")])
    section = RegenerateParams.model_validate(
        {"train": [{"dataset": "owner/name", "kind": "k"}], "heldout": [{"path": held, "kind": "k"}]}
    )
    assert regenerate.check(section) == []
    assert regenerate.estimate(section).bytes is None
    assert regenerate.files(section) == [held]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "a source is in one place"),
        ({"path": "x", "dataset": "y"}, "a source is in one place"),
        ({"path": "x", "revision": "1"}, "only the hub has revisions"),
        ({"path": "x", "form": "text"}, "turns of a text"),
        ({"path": "x", "weight": 0}, "greater than 0"),
    ],
)
def test_sources_that_cannot_be_meant(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegenerateParams.model_validate({"train": [{"kind": "k", **source}], "heldout": [{"kind": "k", "path": "h"}]})


def test_weights_for_some_sources_only() -> None:
    train = [{"kind": "k", "path": "a", "weight": 1.0}, {"kind": "k", "path": "b"}]
    with pytest.raises(ValueError, match="weights are relative to each other"):
        RegenerateParams.model_validate({"train": train, "heldout": [{"kind": "k", "path": "h"}]})
