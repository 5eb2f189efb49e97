"""What the train stage does for options that have nothing to do with a method: loggers and a warm start."""

from __future__ import annotations

import shutil
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
    if train.init_from is None:
        if train.init_take != "weights":
            yield Problem(where="train.init_take", found=train.init_take, expected="train.init_from, which is taken")
    elif train.init_take == "state":
        if not state_files(Path(train.init_from)):
            yield Problem(
                where="train.init_from",
                found=f"no training state in {train.init_from}",
                expected="the artifact of a drafter that was made with train.keep_state",
            )
    else:
        directory = drafter_directory(Path(train.init_from))
        lacking = [] if weight_files(directory) else ["*.safetensors"]
        needed = ["config.json", *(["manifest.json"] if train.init_take == "whole" else [])]
        lacking += [name for name in needed if not (directory / name).is_file()]
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
    if train.init_take == "state":
        return state_files(Path(train.init_from))
    directory = drafter_directory(Path(train.init_from))
    told = [directory / "manifest.json"] if train.init_take == "whole" else []
    return [directory / "config.json", *weight_files(directory), *told]


STATE = "state"
"""Folder of an artifact with the files that training continues from."""


def state_files(artifact: Path) -> list[Path]:
    """Those of an artifact; none where it was made without ``keep_state``."""
    return sorted(file for file in (artifact / STATE).glob("*") if file.is_file())


def bring_state(train: TrainParams, scratch: Path) -> None:
    """Put the state that training is to continue from into its scratch directory, unless it went on from there."""
    if train.init_from is None or train.init_take != "state" or any(scratch.glob("step-*")):
        return
    scratch.mkdir(parents=True, exist_ok=True)
    # The state last: a copy that was cut off is not taken for a whole one.
    for file in sorted(state_files(Path(train.init_from)), key=lambda file: file.name.startswith("step-")):
        partial = scratch / f"{file.name}.copying"
        shutil.copyfile(file, partial)
        partial.replace(scratch / file.name)


def leave_state(train: TrainParams, scratch: Path, output: Path) -> None:
    """Keep the newest state, the weights it calls best, and the curve, where that was asked for."""
    if not train.keep_state:
        return
    states, best = sorted(scratch.glob("step-*")), sorted(scratch.glob("best-*"))
    (output / STATE).mkdir()
    for file in (*states[-1:], *best[-1:], scratch / "metrics.jsonl"):
        shutil.copyfile(file, output / STATE / file.name)
