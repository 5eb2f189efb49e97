"""Where the training curve goes besides ``metrics.jsonl``. Each package is optional and imported when asked for.

A logger that fails (a full disk, a server that is gone) is dropped with a message: it never ends a training run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""The package that each logger needs, under the name pip knows."""


class MetricsLogger(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of one step; a name may have parts: ``tau/service``."""
        ...

    def close(self) -> None: ...


class Loggers:
    """All loggers of a run as one."""

    def __init__(self, loggers: Mapping[str, MetricsLogger], *, note: Callable[[str], None]) -> None:
        self._loggers, self._note = dict(loggers), note

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """``values`` may be nested, as a line of the curve is; what is no number is left out."""
        numbers = flat(values)
        self._each(lambda logger: logger.log(step, numbers))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, use: Callable[[MetricsLogger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                use(logger)
            except Exception as error:
                del self._loggers[name]
                self._note(f"logger {name} is switched off: {type(error).__name__}: {error}")


def not_installed(names: Sequence[str]) -> list[str]:
    """Those of ``names`` whose package is not there."""
    return [name for name in names if importlib.util.find_spec(PACKAGES[name]) is None]


def open_loggers(
    names: Sequence[str],
    *,
    directory: Path,
    run: str,
    settings: Mapping[str, Any],
    first_step: int,
    note: Callable[[str], None],
) -> Loggers:
    """Loggers that write below ``directory``, each in a folder of its name, without a network.

    ``run``: its name; ``settings``: shown beside the curves; ``first_step``: lines of a killed run from here on are
    superseded.
    """
    made: dict[str, MetricsLogger] = {}
    for name in names:
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            made[name] = _MAKERS[name](folder, run, settings, first_step)
        except Exception as error:
            note(f"logger {name} is switched off: {type(error).__name__}: {error}")
    return Loggers(made, note=note)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested mapping; parts of a name are joined by a slash, positions of a list count from 1."""
    found: dict[str, float] = {}
    for name, value in values.items():
        children = dict(enumerate(value, start=1)) if isinstance(value, list | tuple) else value
        if isinstance(children, Mapping):
            found |= flat({str(key): child for key, child in children.items()}, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = float(value)
    return found


class TensorBoardLogger:
    """Event files; what a killed run wrote from ``first_step`` on is hidden."""

    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any], first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_step)
        if first_step == 0:
            rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
            self._writer.add_text("settings", f"| {run} | |\n|---|---|\n{rows}", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflowLogger:
    """A tracking database in the folder; one run, which a resumed training continues."""

    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any], first_step: int) -> None:
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder.absolute() / 'mlflow.db'}")
        remembered = folder / "run.txt"
        if remembered.exists():
            self._run = remembered.read_text()
            return
        found = self._client.get_experiment_by_name("specflow")
        experiment = found.experiment_id if found else self._client.create_experiment("specflow")
        self._run = self._client.create_run(experiment, run_name=run).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)
        remembered.write_text(self._run)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandbLogger:
    """An offline run in the folder; ``wandb sync`` sends it where it is to be seen."""

    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any], first_step: int) -> None:
        import wandb

        self._run = wandb.init(
            project="specflow", name=run, dir=str(folder), mode="offline", config=dict(settings), reinit="create_new"
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


_MAKERS: dict[str, Callable[[Path, str, Mapping[str, Any], int], MetricsLogger]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}
