"""Loading a model prints no progress bar of transformers, and leaves its setting as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from specflow.serving.generate_baseline import GenerateBaseline
from specflow.targets.pretrained import load_causal_model, without_bars
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pretrained") / "target"
    make_tiny_target(found, seed=0)
    return found


def test_no_bar_is_shown(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging.enable_progress_bar()
    AutoModelForCausalLM.from_pretrained(path)
    assert "%|" in capfd.readouterr().err, "transformers shows a bar: otherwise this test cannot fail"
    load_causal_model(path)
    make_tiny_target(path, seed=0)
    Target.load(path, threads=1)
    GenerateBaseline(path, dtype="float32")
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


def test_bars_that_are_off_stay_off() -> None:
    logging.disable_progress_bar()
    try:
        with without_bars():
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()
