"""What is read from a valid file, and that it survives being written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.config.base import NOT_IN_KEY
from specflow.config.loading import dump_config, load_config
from specflow.config.overrides import Override, parse_overrides
from specflow.config.root import Config
from tests.config.support import VALID, write


def test_values_and_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path)).config
    assert config.name == "small"
    assert config.store == Path("artifacts")
    assert config.capture.layer_ids == (1, 2)
    assert config.drafters["first"].train.steps == 5
    assert config.drafters["second"].train.steps == 1000
    assert config.drafters["second"].layer_ids == (2,)
    assert config.drafters["first"].train.betas == (0.9, 0.95)


def test_paths_start_at_the_file_and_the_store_at_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    path = write(tmp_path / "there", VALID + "store: kept\n")
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(path).config
    assert config.regenerate.train[0].path == tmp_path / "there" / "train.jsonl"
    assert config.store == Path("kept")


def test_a_path_may_lead_up(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write(tmp_path)
    path = write(tmp_path / "below", VALID.replace("path: train.jsonl", "path: ../train.jsonl"))
    assert load_config(path).config.regenerate.train[0].path == tmp_path / "train.jsonl"


@pytest.mark.parametrize(
    ("text", "value"),
    [("6e-4", 6e-4), ("6.0e-4", 6e-4), ("1", 1.0), (".5", 0.5), ("2E-2", 2e-2)],
)
def test_numbers_as_people_write_them(tmp_path: Path, text: str, value: float) -> None:
    loaded = load_config(write(tmp_path), parse_overrides([f"drafters.first.train.learning_rate={text}"]))
    assert loaded.config.drafters["first"].train.learning_rate == value


@pytest.mark.parametrize("text", ["on", "no", "2026-01-31", "1:30", "010", "1_000"])
def test_text_that_older_yaml_takes_for_something_else(tmp_path: Path, text: str) -> None:
    assert load_config(write(tmp_path), parse_overrides([f"report.title={text}"])).config.report.title == text


def test_overrides_win_in_order(tmp_path: Path) -> None:
    settings = ["bench.repeats=2", "bench.repeats=3", "regenerate.train.0.limit=7", "drafters.*.num_layers=4"]
    config = load_config(write(tmp_path), parse_overrides(settings)).config
    assert config.bench.repeats == 3
    assert config.regenerate.train[0].limit == 7
    assert {name: drafter.num_layers for name, drafter in config.drafters.items()} == {"first": 4, "second": 4}


def test_an_override_may_make_a_section_and_a_drafter(tmp_path: Path) -> None:
    settings = ["verify.near_tie=0.25", "drafters.third={method: dflash, block_size: 4}", "capture.layer_ids=[0,2]"]
    config = load_config(write(tmp_path), parse_overrides(settings)).config
    assert config.verify.near_tie == 0.25
    assert list(config.drafters) == ["first", "second", "third"]
    assert config.drafters["third"].block_size == 4
    assert config.capture.layer_ids == (0, 2)


def test_dump_loads_back_equal_from_anywhere(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path), parse_overrides(["report.title='yes: # 1'", "tokenize.max_skipped=1e-3"])
    ).config
    (tmp_path / "elsewhere").mkdir()
    dumped = tmp_path / "elsewhere" / "dumped.yaml"
    dumped.write_text(dump_config(config))
    assert load_config(dumped).config == config


TEXT = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))
NUMBERS = st.floats(min_value=1e-12, max_value=1e12, allow_nan=False)
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        ("report", "title"): st.sampled_from(["1e5", "010", "0x1F", ".5", "yes"]) | st.text(TEXT, max_size=20),
        ("drafters", "first", "train", "learning_rate"): NUMBERS,
        ("drafters", "first", "position_decay"): st.none() | NUMBERS,
        ("drafters", "first", "train", "betas"): st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2),
        ("bench", "repeats"): st.integers(1, 10**12),
        ("bench", "compare_transformers"): st.booleans(),
        ("capture", "layer_ids"): st.sets(st.integers(3, 99), min_size=1).map(lambda ids: [2, *sorted(ids)]),
        ("regenerate", "precision"): st.sampled_from(["auto", "fp32", "bf16", "packed"]),
        ("drafters", "first", "mask_token"): st.none() | st.sampled_from(["null", "true", "1", "~", "<|m|>", "a: b"]),
    },
)


@settings(max_examples=40, deadline=None)
@given(values=OVERRIDES)
def test_any_configuration_round_trips(
    tmp_path_factory: pytest.TempPathFactory, values: dict[tuple[str, ...], object]
) -> None:
    directory = tmp_path_factory.mktemp("round")
    # Of a model on a hub nothing is known here, so that any layer may be asked for.
    values = {("target", "source"): "somebody/model", **values}
    overrides = [Override(path=path, value=value, flag="--set") for path, value in values.items()]
    config = load_config(write(directory), overrides).config
    dumped = directory / "dumped.yaml"
    dumped.write_text(dump_config(config), encoding="utf-8")
    assert load_config(dumped).config == config
    for path, value in values.items():
        found: object = config
        for part in path:
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        assert (list(found) if isinstance(found, tuple) else found) == value


def test_every_field_has_a_description() -> None:
    def undescribed(model: type, where: str) -> list[str]:
        from specflow.config.fields import models_in

        missing = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if not field.description:
                missing.append(f"{where}{name}")
            for nested in models_in(field.annotation):
                missing += undescribed(nested, f"{where}{name}.")
        return missing

    assert undescribed(Config, "") == []


def test_what_is_not_in_a_key_is_marked() -> None:
    extra = Config.model_fields["capture"].annotation.model_fields["threads"].json_schema_extra  # type: ignore[union-attr]
    assert extra == NOT_IN_KEY == {"in_key": False}
