"""What a run writes down while it trains: always ``metrics.jsonl``, and the loggers that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specflow.config.drafter import TrainParams
from specflow.training.curve import Curve
from specflow.training.loggers import open_loggers

CURVE = "metrics.jsonl"
LOGS = "logs"
"""Folder of the loggers' files, unless ``log_dir`` names another directory."""


class Recorder:
    """The curve and the loggers of one run, continued after ``finished`` steps."""

    def __init__(
        self, scratch: Path, params: TrainParams, *, finished: int, run: str, note: Callable[[str], None]
    ) -> None:
        self.curve = Curve(scratch / CURVE, finished=finished)
        directory = log_directory(scratch, params, run)
        self._loggers = open_loggers(
            params.loggers,
            directory=directory,
            run=run,
            settings=settings(params),
            first_step=finished + 1 if finished else 0,
            note=note,
        )
        if params.loggers:
            note(f"curves also go to {', '.join(params.loggers)} in {directory}")

    def add(self, step: int, **values: Any) -> None:
        self.curve.add(step=step, **values)
        evaluation = "tau" in values
        self._loggers.log(step, {("heldout" if evaluation else "train"): values})

    def close(self) -> None:
        self._loggers.close()


def log_directory(scratch: Path, params: TrainParams, run: str) -> Path:
    """Where the loggers' files of a run are."""
    return scratch / LOGS if params.log_dir is None else params.log_dir / run


def settings(params: TrainParams) -> dict[str, Any]:
    """Parameters as loggers show them."""
    return {name: str(value) for name, value in params.model_dump(mode="json").items()}
