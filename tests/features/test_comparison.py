"""Which differences refuse which use, and how they are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specflow.features.comparison import USES, Side, Use, compare, rows_of
from specflow.features.contract import Difference, FeatureContract

CONTRACT = FeatureContract(
    weights_sha256="a" * 64,
    config_sha256="b" * 64,
    tokenizer_sha256="c" * 64,
    template_sha256="d" * 64,
    layer_ids=(0, 2),
    hidden_size=8,
    precision="packed",
)
TARGET = Side(
    what="target",
    where="target/1234 (/targets/one)",
    values={
        **{name: getattr(CONTRACT, name) for name in CONTRACT.to_dict() if name.endswith("sha256")},
        "hidden_size": 8,
        "layers": 4,
        "layer_convention": "output_of_layer",
        "last_hidden": "post_final_norm",
    },
)
SAME_TARGET = ("weights_sha256", "config_sha256", "tokenizer_sha256", "template_sha256", "hidden_size")
SAME_MEANING = ("layer_convention", "last_hidden")


def side(what: str = "features", **changes: Any) -> Side:
    return Side(what=what, where=f"{what}/9876 (/store)", values=replace(CONTRACT, **changes).to_dict())


def other(field: str) -> Any:
    """A value of another kind than ``CONTRACT`` has."""
    value = getattr(CONTRACT, field)
    if field == "layer_ids":
        return (0, 1)
    return "e" * 64 if field.endswith("sha256") else value + 1 if isinstance(value, int) else f"other {value}"


def refused(use: Use, first: Side, second: Side) -> list[str]:
    return [found.field for found in compare(use, first, second).refused]


def told(use: Use, first: Side, second: Side) -> list[str]:
    return [found.field for found in compare(use, first, second).told]


def test_every_rule_is_for_a_field_that_exists() -> None:
    for rules in USES.values():
        assert set(rules) <= set(FeatureContract.__dataclass_fields__)


@pytest.mark.parametrize("use", [Use.CAPTURED_FROM, Use.DRAFTS_FOR])
def test_against_a_target(use: Use) -> None:
    assert refused(use, side(), TARGET) == []
    for field in (*SAME_TARGET, *SAME_MEANING):
        assert refused(use, side(**{field: other(field)}), TARGET) == [field]
    for field in ("precision", "dtype", "rows", "thinking"):
        assert refused(use, side(**{field: other(field)}), TARGET) == []
    running = replace(TARGET, values={**TARGET.values, "precision": "fp32"})
    assert told(use, side(), running) == ["precision"]
    assert told(use, side(precision="fp32"), running) == []


@pytest.mark.parametrize(("layer_ids", "reachable"), [((0, 2), True), ((2,), True), ((1, 3), False), ((4,), False)])
def test_the_last_layer_of_a_target_cannot_be_read(layer_ids: tuple[int, ...], reachable: bool) -> None:
    found = compare(Use.CAPTURED_FROM, side(layer_ids=layer_ids), TARGET)
    assert [d.field for d in found.refused] == ([] if reachable else ["layer_ids"])
    if not reachable:
        shown = ", ".join(map(str, layer_ids))
        assert list(rows_of(found.refused)) == [("layer_ids", shown, "0 to 2 of 4 layers")]


@pytest.mark.parametrize("field", FeatureContract.__dataclass_fields__)
def test_features_that_a_drafter_was_trained_on(field: str) -> None:
    drafter, features = side("drafter"), side(**{field: other(field)})
    must = {*SAME_TARGET, *SAME_MEANING, "layer_ids"}
    assert refused(Use.TRAINED_ON, drafter, features) == ([field] if field in must else [])
    assert told(Use.TRAINED_ON, drafter, features) == ([] if field in must else [field])


@pytest.mark.parametrize("field", FeatureContract.__dataclass_fields__)
def test_an_export_is_that_of_its_drafter_in_every_field(field: str) -> None:
    assert refused(Use.EXPORT_OF, side("export", **{field: other(field)}), side("drafter")) == [field]
    assert refused(Use.EXPORT_OF, side("export"), side("drafter")) == []


def test_a_drafter_may_read_a_part_of_the_layers() -> None:
    def needs(*layer_ids: int, **changes: Any) -> Side:
        values = {"layer_ids": layer_ids, "hidden_size": 8, "layer_convention": "output_of_layer"}
        return Side(what="drafter", where="drafters.x", values={**values, "last_hidden": "post_final_norm", **changes})

    for layers, wrong in (((0, 2), []), ((2,), []), ((1,), ["layer_ids"]), ((0, 2, 3), ["layer_ids"])):
        assert refused(Use.READS, side(), needs(*layers)) == wrong
    assert refused(Use.READS, side(), needs(0, hidden_size=9)) == ["hidden_size"]
    assert refused(Use.READS, side(), needs(0, last_hidden="pre")) == ["last_hidden"]


def test_what_must_agree_must_be_stated() -> None:
    for field in (*SAME_TARGET, *SAME_MEANING, "layers"):
        silent = replace(TARGET, values={k: v for k, v in TARGET.values.items() if k != field})
        missing = "layer_ids" if field == "layers" else field
        found = compare(Use.CAPTURED_FROM, side(), silent)
        assert [d.field for d in found.refused] == [missing]
        assert "not stated" in str(found)


def test_two_of_a_kind_may_differ_in_everything_and_it_is_told() -> None:
    for field in FeatureContract.__dataclass_fields__:
        assert told(Use.SAME, side(), side(**{field: other(field)})) == [field]
        assert refused(Use.SAME, side(), side(**{field: other(field)})) == []


def test_the_message_names_both_sides_and_every_difference() -> None:
    found = compare(Use.CAPTURED_FROM, side(weights_sha256="e" * 64, hidden_size=9, precision="bf16"), TARGET)
    assert str(found).splitlines() == [
        "features  features/9876 (/store)",
        "target    target/1234 (/targets/one)",
        "field           features         target",
        "--------------  ---------------  ---------------",
        "weights_sha256  eeeeeeeeeeee...  aaaaaaaaaaaa...",
        "hidden_size     9                8",
    ]


@pytest.mark.parametrize("common", [0, 5, 11, 12, 30, 60, 63])
def test_hashes_are_cut_only_as_far_as_they_differ(common: int) -> None:
    one, two = "a" * 64, "a" * common + "b" * (64 - common)
    (row,) = rows_of((Difference("weights_sha256", one, two),))
    assert row[1] != row[2]
    for shown, whole in zip(row[1:], (one, two), strict=True):
        assert whole.startswith(shown.removesuffix("..."))
        assert 12 <= len(shown.removesuffix("...")) <= max(12, common + 4)
