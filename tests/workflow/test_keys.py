"""Keys change with everything that can change a result, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from specflow.config.base import NOT_IN_KEY, Section
from specflow.workflow.keys import canonical_json, content_key, key_parameters, non_finite

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


class Inner(Section):
    rate: float = 0.5
    workers: int = Field(default=1, json_schema_extra=NOT_IN_KEY)


class Outer(Section):
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    path: Path | None = None
    source: str = "none"
    threads: int | None = Field(default=None, json_schema_extra=NOT_IN_KEY)


def key(**changed: Any) -> str:
    base: dict[str, Any] = {
        "kind": "features",
        "stage": "capture",
        "code_version": "c",
        "parameters": {"a": 1, "b": [1, 2.5]},
        "inputs": {"target": ["t"], "tokens": ["x", "y"]},
        "item": None,
    }
    return content_key(**{**base, **changed})


def test_key_changes_with_each_of_its_parts_and_not_with_order() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"kind": "tokens"},
        {"stage": "tokenize"},
        {"code_version": "d"},
        {"parameters": {"a": 1, "b": [2.5, 1]}},
        {"inputs": {"target": ["t"], "tokens": ["x", "z"]}},
        {"item": "small"},
    ]
    keys = [key(**change) for change in changes]
    assert len(set(keys)) == len(keys)
    assert all(len(k) == 64 for k in keys)
    assert key(inputs={"tokens": ["y", "x"], "target": ["t"]}) == keys[0]
    assert key(parameters={"b": [1, 2.5], "a": 1}) == keys[0]


@given(st.dictionaries(st.text(), values, max_size=4), st.randoms())
def test_key_ignores_the_order_of_names(parameters: dict[str, Any], random: Any) -> None:
    shuffled = list(parameters.items())
    random.shuffle(shuffled)
    assert key(parameters=dict(shuffled)) == key(parameters=parameters)


@given(values, values)
def test_canonical_json_is_equal_only_for_equal_json(left: Any, right: Any) -> None:
    assert canonical_json(left) == canonical_json(left)
    if canonical_json(left) == canonical_json(right):
        assert left == right


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_without_an_equal_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"loss": bad})
    assert non_finite({"a": {"b": [1.0, bad]}}) == "a.b.1"
    assert non_finite({"a": {"b": [1.0, 2]}}) is None


def test_fields_that_cannot_change_a_result_are_left_out_at_every_depth() -> None:
    some = Outer(many=(Inner(rate=1.0, workers=7),), threads=4)
    assert key_parameters(some) == {
        "inner": {"rate": 0.5},
        "many": [{"rate": 1.0}],
        "path": None,
        "source": "none",
    }


def test_files_count_by_content_and_not_by_place(tmp_path: Path) -> None:
    def reduced(root: Path) -> dict[str, Any]:
        files = [root / "prompts.jsonl", root / "model" / "weights", root / "other.gguf"]
        params = Outer(path=files[0], source=str(root / "model"))
        return key_parameters(params, files)

    first, second = tmp_path / "one", tmp_path / "two"
    (first / "model").mkdir(parents=True)
    (first / "prompts.jsonl").write_text("a")
    (first / "model" / "weights").write_text("b")
    (first / "other.gguf").write_text("c")
    shutil.copytree(first, second)
    assert reduced(first) == reduced(second)
    assert str(tmp_path) not in str(reduced(first))
    before = reduced(first)
    for name in ("prompts.jsonl", "model/weights", "other.gguf"):
        original = (first / name).read_text()
        (first / name).write_text("changed")
        assert reduced(first) != before, name
        (first / name).write_text(original)
    with pytest.raises(FileNotFoundError):
        key_parameters(Outer(), [tmp_path / "absent"])


def test_a_file_that_is_no_parameter_is_in_the_key_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    with_file = key_parameters(Outer(), [tmp_path / "a"])
    assert with_file != key_parameters(Outer())
    assert isinstance(Outer(), BaseModel)
    assert with_file["external_files"][0][0] == "a"
