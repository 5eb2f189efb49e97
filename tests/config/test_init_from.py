"""A drafter to start from: by path beside the configuration, or by key in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.config.loading import dump_config, load_config
from specflow.config.overrides import parse_overrides
from tests.config.support import VALID, problems, write

FIRST, SECOND = "ab12" + "0" * 60, "ab34" + "1" * 60


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for key in (FIRST, SECOND):
        (tmp_path / "kept" / "drafter" / key / "drafter").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").mkdir()
    return write(tmp_path / "there", VALID + f"store: {tmp_path / 'kept'}\n")


def found(config: Path, value: str) -> str | None:
    settings = parse_overrides([f"drafters.first.train.init_from={value}"])
    return load_config(config, settings).config.drafters["first"].train.init_from


def test_path_and_key(config: Path, tmp_path: Path) -> None:
    assert found(config, "old") == str(tmp_path / "there" / "old")
    assert found(config, str(tmp_path / "there" / "old")) == str(tmp_path / "there" / "old")
    for value in (FIRST, "ab1", "drafter/ab12"):
        assert found(config, value) == str(tmp_path / "kept" / "drafter" / FIRST)
    assert load_config(config).config.drafters["first"].train.init_from is None


def test_a_resolved_configuration_loads_back_equal(config: Path, tmp_path: Path) -> None:
    first = load_config(config, parse_overrides(["drafters.first.train.init_from=ab3"])).config
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(first))
    assert load_config(again).config == first


@pytest.mark.parametrize("value", ["nowhere", "ab9", "../other", "a*"])
def test_no_such_drafter(config: Path, value: str) -> None:
    (problem,) = problems(config, f"drafters.first.train.init_from={value}")
    assert (problem.path, problem.message) == ("drafters.first.train.init_from", "no such drafter")
    assert value in problem.found
    assert "the directory of a drafter, or the beginning of a key in" in problem.expected


def test_a_key_that_names_two_and_other_problems_at_once(config: Path) -> None:
    found = problems(config, "drafters.first.train.init_from=ab", "drafters.second.train.init_from=none-such")
    assert [p.message for p in found] == ["several drafters", "no such drafter"]
    assert "ab12" in found[0].found
    assert "ab34" in found[0].found
