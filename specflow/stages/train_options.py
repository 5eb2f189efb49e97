"""What the train stage does for options that have nothing to do with a method: loggers and a warm start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specflow.config.drafter import TrainParams
from specflow.drafters.files import drafter_directory, weight_files
from specflow.stages.contract import Problem


def check_options(train: TrainParams) -> Iterable[Problem]:
    """Loggers without their package, and a drafter to start from that has no weights."""
    from specflow.training.loggers import not_installed

    for name in not_installed(train.loggers):
        yield Problem(
            where="train.loggers",
            found=f"{name}, which is not installed",
            expected="loggers whose package is there",
            hint=f"pip install {name}",
        )
    if train.init_from is not None:
        directory = drafter_directory(Path(train.init_from))
        lacking = [] if weight_files(directory) else ["*.safetensors"]
        lacking += [] if (directory / "config.json").is_file() else ["config.json"]
        if lacking:
            yield Problem(
                where="train.init_from",
                found=f"no {' and no '.join(lacking)} in {directory}",
                expected="the directory of a drafter: its config.json and its weights as safetensors",
            )


def warm_start_files(train: TrainParams) -> list[Path]:
    """Files of the drafter that training starts from."""
    if train.init_from is None:
        return []
    directory = drafter_directory(Path(train.init_from))
    return [directory / "config.json", *weight_files(directory)]
