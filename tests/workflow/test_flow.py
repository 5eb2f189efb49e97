"""Everything wrong with a flow is found at once, with its line and the nearest name."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from specflow.config.document import parse_document
from specflow.config.errors import InputErrors, InputProblem, Location
from specflow.workflow.flow import Flow, parse_flow
from specflow.workflow.graph import expand
from specflow.workflow.registry import Registry
from tests.workflow.fakes.params import FakeConfig, ScaleParams, SourceParams


def parse(text: str, registry: Registry) -> Flow:
    return parse_flow(parse_document(textwrap.dedent(text), source="flow.yaml"), registry=registry)


def problems_of(text: str, registry: Registry) -> list[InputProblem]:
    with pytest.raises(InputErrors) as raised:
        parse(text, registry)
    return list(raised.value.problems)


def config_problems(text: str, registry: Registry, config: FakeConfig, **options: Any) -> list[InputProblem]:
    with pytest.raises(InputErrors) as raised:
        expand(parse(text, registry), config, registry=registry, **options)
    return list(raised.value.problems)


def test_all_problems_at_once_with_lines_and_nearest_names(registry: Registry) -> None:
    text = """\
    name: broken
    describtion: words
    stages:
      numbers: {stage: sorce}
      scale:
        stage: scale
        need: [numbers]
      total:
        stage: total
        needs: [scal, numbers]
      lonely: {stage: scale}
      wrong: {stage: source, needs: [lonely]}
    """
    found = {(p.location.line, p.message): p for p in problems_of(text, registry)}
    assert set(found) == {
        (2, "unknown key"),
        (4, "unknown stage"),
        (7, "unknown key"),
        (10, "unknown entry"),
        (11, "stage 'scale' reads 'numbers', which no entry in `needs` makes"),
        (12, "`lonely` makes 'scaled', which stage 'source' does not read"),
    }
    assert found[2, "unknown key"].hint == "did you mean `description`?"
    assert found[4, "unknown stage"].hint == "did you mean `source`?"
    assert found[7, "unknown key"].hint == "did you mean `needs`?"
    assert found[10, "unknown entry"].found == "scal"
    assert found[10, "unknown entry"].hint == "did you mean `scale`?"
    assert str(found[4, "unknown stage"]).startswith("flow.yaml:4:")


def test_a_missing_input_names_the_entry_that_makes_it(registry: Registry) -> None:
    text = "name: f\nstages:\n  first: {stage: source}\n  second: {stage: scale}\n"
    (problem,) = problems_of(text, registry)
    assert (problem.location.line, problem.hint) == (4, "add `first` to `needs`")


def test_a_cycle_is_printed(registry: Registry) -> None:
    text = """\
    name: round
    stages:
      numbers: {stage: source}
      a: {stage: total, needs: [b]}
      b: {stage: total, needs: [c]}
      c: {stage: total, needs: [a]}
    """
    cycles = [p for p in problems_of(text, registry) if p.message == "the flow has a cycle"]
    assert [(p.found, p.location.line) for p in cycles] == [("a needs b needs c needs a", 4)]


def test_a_stage_that_needs_itself_is_a_cycle(registry: Registry) -> None:
    found = problems_of("name: f\nstages:\n  a: {stage: total, needs: [a]}\n", registry)
    assert "a needs a" in [p.found for p in found]


def test_two_makers_of_one_kind(registry: Registry) -> None:
    text = "name: f\nstages:\n  a: {stage: source}\n  b: {stage: source}\n  c: {stage: scale, needs: [a, b]}\n"
    (problem,) = problems_of(text, registry)
    assert problem.message == "more than one entry makes 'numbers'"


def test_expansion_matches_items_and_collects_them(flow: Flow, registry: Registry) -> None:
    nodes = expand(flow, FakeConfig(), registry=registry)
    assert [(n.id, n.kind, n.item, n.section, n.needs) for n in nodes] == [
        ("numbers", "numbers", None, "source", ()),
        ("scale:a", "scaled", "a", "scales.a", ("numbers",)),
        ("scale:b", "scaled", "b", "scales.b", ("numbers",)),
        ("total", "total", None, "total", ("scale:a", "scale:b", "numbers")),
    ]
    assert nodes[2].params == ScaleParams(factor=10)


def test_the_same_mapping_pairs_items(registry: Registry) -> None:
    text = """\
    name: pairs
    stages:
      numbers: {stage: source}
      scale: {stage: scale, needs: [numbers], foreach: scales}
      total: {stage: total, needs: [scale], foreach: scales}
    """
    nodes = expand(parse(text, registry), FakeConfig(), registry=registry)
    assert {n.id: n.needs for n in nodes if n.stage == "total"} == {"total:a": ("scale:a",), "total:b": ("scale:b",)}
    assert {n.section for n in nodes if n.stage == "total"} == {"total"}


@pytest.mark.parametrize(
    ("when", "wanted", "runs"), [("wanted", True, True), ("wanted", False, False), ("not wanted", False, True)]
)
def test_when(registry: Registry, when: str, wanted: bool, runs: bool) -> None:
    text = (
        f"name: f\nstages:\n  numbers: {{stage: source}}\n  total: {{stage: total, needs: [numbers], when: {when}}}\n"
    )
    nodes = expand(parse(text, registry), FakeConfig(wanted=wanted), registry=registry)
    assert [n.id for n in nodes] == (["numbers", "total"] if runs else ["numbers"])


def test_paths_into_the_configuration_are_checked(registry: Registry) -> None:
    text = """\
    name: f
    stages:
      numbers: {stage: source, when: wantd}
      scale: {stage: scale, needs: [numbers], foreach: source.count}
    """
    found = config_problems(text, registry, FakeConfig())
    assert [(p.location.line, p.message) for p in found][:2] == [
        (4, "`source.count` is not a mapping"),
        (3, "the configuration has no such path"),
    ]
    assert found[1].hint == "did you mean `wanted`?"


def test_an_input_that_is_switched_off(registry: Registry) -> None:
    text = "name: f\nstages:\n  n: {stage: source, when: wanted}\n  s: {stage: scale, needs: [n], foreach: scales}\n"
    found = config_problems(text, registry, FakeConfig(wanted=False))
    assert [p.message for p in found] == ["'n' is switched off by `when: wanted`"]


def test_problems_of_stages_are_mapped_to_the_configuration(flow: Flow, registry: Registry, tmp_path: Path) -> None:
    asked = []

    def locate(path: str) -> Location:
        asked.append(path)
        return Location(source="config.yaml", line=7)

    with pytest.raises(InputErrors) as raised:
        expand(flow, FakeConfig(source=SourceParams(count=2000)), registry=registry, locate=locate)
    (problem,) = raised.value.problems
    assert (str(problem.location), problem.path, problem.found, problem.hint) == (
        "config.yaml:7",
        "source.count",
        "2000",
        "use fewer",
    )
    with pytest.raises(InputErrors, match="missing file") as raised:
        expand(flow, FakeConfig(source=SourceParams(data=tmp_path / "no")), registry=registry, locate=locate)
    assert asked == ["source.count", "source"]
