"""Trees in the configuration: what fits, which drafters may, and where a wrong key is."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.config.flags import flags_of
from specflow.config.loading import dump_config, load_config
from specflow.config.overrides import parse_overrides
from specflow.config.tree import TreeParams
from specflow.drafters.dflash.params import Params
from tests.config.support import VALID, problems, write

TREE = VALID + "bench:\n  tree: {steps: 3, topk: 2, num_draft_tokens: 8}\nverify:\n  tree: {}\n"


def test_a_tree_is_read_and_written(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, TREE)).config
    assert config.bench.tree == TreeParams(steps=3, topk=2, num_draft_tokens=8)
    assert config.verify.tree == TreeParams(steps=5, topk=8, num_draft_tokens=32)
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml").config == config
    for value, expected in (("auto", "auto"), ("null", None)):
        assert (
            load_config(tmp_path / "config.yaml", parse_overrides([f"bench.tree={value}"])).config.bench.tree
            == expected
        )


@pytest.mark.parametrize(
    ("before", "after", "path", "found", "expected"),
    [
        ("steps: 3", "step: 3", "bench.tree.step", "step", "one of num_draft_tokens, steps, topk"),
        ("steps: 3", "steps: 0", "bench.tree.steps", "0", "greater than or equal to 1"),
        ("{steps: 3, topk: 2, num_draft_tokens: 8}", "best", "bench.tree", '"best"', "one of auto"),
        ("num_draft_tokens: 8", "num_draft_tokens: 12", "bench.tree", "num_draft_tokens 12", "at most 11: the anchor"),
        ("tree: {}", "tree: auto", "verify.tree", '"auto" (text)', "a mapping"),
        ("tree: {}", "tree_drafters: [third]", "verify.tree_drafters", '["third"]', "first, second"),
    ],
)
def test_wrong_keys(tmp_path: Path, before: str, after: str, path: str, found: str, expected: str) -> None:
    assert before in TREE
    (problem,) = problems(write(tmp_path, TREE.replace(before, after)))
    assert (problem.path, problem.found) == (path, found)
    assert expected in problem.expected
    assert problem.location.line is not None


def test_drawn_proposals_are_chains(tmp_path: Path) -> None:
    settings = "bench.sampling={temperature: 1, draft_temperature: 1}"
    (problem,) = problems(write(tmp_path, TREE), settings)
    assert problem.message == "proposals that are drawn are chains"


def test_methods_that_propose_chains_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Params, "proposes_trees", False)
    path = write(tmp_path, TREE)
    first, second = problems(path)
    assert (first.path, second.path) == ("verify.tree", "bench.tree")
    assert first.message == "drafters whose method proposes no trees"
    assert first.found == '"first (dflash), second (dflash)"'
    assert first.expected == "no verify.tree: chains"
    assert (first.location.line, second.location.line) == (23, 21)
    # Chains need no ability, and a tree that no drafter is asked for none either.
    load_config(path, parse_overrides(["bench.tree=null", "verify.tree_drafters=[]"]))


def test_trees_that_an_engine_does_not_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DFlash proposes trees here; SGLang serves it with chains."""
    path = write(tmp_path, VALID + "export:\n  tree: {steps: 3, topk: 2, num_draft_tokens: 8}\n")
    (problem,) = problems(path)
    assert (problem.path, problem.message) == ("export.tree", "drafters that an engine serves with chains only")
    assert problem.expected == "no export.tree: chains"
    monkeypatch.setattr(Params, "serves_trees", True)
    assert load_config(path).config.export.tree == TreeParams(steps=3, topk=2, num_draft_tokens=8)


def test_the_switch_of_a_section_is_a_flag_with_its_name() -> None:
    flags = {flag.name: flag for flag in flags_of("verify")}
    assert flags["lossless"].leaf.is_flag
    assert flags["lossless"].path == ("verify", "lossless", "enabled")
    assert flags["answer-tokens"].path == ("verify", "lossless", "answer_tokens")
    assert "enabled" not in flags
