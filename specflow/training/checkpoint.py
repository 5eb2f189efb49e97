"""Training state on disk: enough to continue bit for bit, whatever the number of ranks.

Files of a directory: ``step-<n>`` the newest state and the one before it, ``best-<n>`` the weights that each of these
two calls best. Tensors are whole and named by parameter; everything else is JSON in the file's header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specflow.training.ema import Ema
from specflow.training.optimizers import Optimizers
from specflow.training.tensor_file import SUFFIX, DamagedFile, read_tensors, read_values, write_tensors
from specflow.training.tensors import placed_like, whole

KEPT = 2
"""Newest states that are kept: the one to continue from, and the one before in case that is damaged."""
NETWORK, OPTIMIZER, AVERAGE, RANDOM = "network.", "optimizer.", "ema.", "random.cpu"


@dataclass(slots=True, kw_only=True)
class Progressed:
    """Everything that is not a tensor. The position in the data is the step: sampling is a pure function of it."""

    step: int = 0
    """Finished steps."""
    best_step: int = -1
    best_tau: float = -1.0
    anchors: int = 0
    labels: int = 0
    context_rows: int = 0
    documents_without_anchor: int = 0
    steps_without_anchor: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    seconds: float = 0.0
    window: dict[str, list[float]] = field(default_factory=dict)
    """Per term of the loss its numerator and denominator, summed since the last line of the curve."""
    last_loss: float | None = None
    mean_loss: float | None = None
    """Running mean, and the lowest it was."""
    best_mean_loss: float | None = None
    diverging: bool = False
    """Whether the last step was warned of, so that one warning stands for all that follow."""


def save_checkpoint(
    directory: Path,
    network: nn.Module,
    optimizers: Optimizers,
    state: Progressed,
    ema: Ema | None = None,
    *,
    write: bool = True,
) -> None:
    """Write ``step-<n>``, then remove what is older; a kill at any moment leaves a complete checkpoint.

    All ranks of a run call this, and one of them with ``write``.
    """
    tensors = _under(NETWORK, {name: whole(value) for name, value in network.named_parameters()})
    tensors |= _under(OPTIMIZER, optimizers.state_tensors())
    tensors |= _under(AVERAGE, ema.tensors()) if ema else {}
    # Nothing here draws from it; a method whose network does continues with the same numbers.
    tensors[RANDOM] = torch.get_rng_state()
    if write:
        write_tensors(_path(directory, "step", state.step), tensors, asdict(state))
        _tidy(directory)


def load_checkpoint(
    directory: Path,
    network: nn.Module,
    optimizers: Optimizers,
    ema: Ema | None = None,
    *,
    note: Callable[[str], None] = lambda text: None,
) -> Progressed | None:
    """Restore the newest undamaged checkpoint; none if there is none. Damaged files are removed, with a ``note``.

    A state whose best weights are damaged is taken only where no older one is whole; the best is then unknown.
    Raises ``ValueError`` if the checkpoint is of another network, or lacks the average that is asked for.
    """
    without_best: Path | None = None
    for path in reversed(_states(directory)):
        try:
            state = _state(read_values(path))
            tensors, _ = read_tensors(path)
        except DamagedFile as error:
            note(f"checkpoint {path.name} is passed over: {error}")
            path.unlink(missing_ok=True)
            continue
        if state.best_step < 0 or _is_whole(_path(directory, "best", state.best_step), note):
            _restore(path, tensors, network, optimizers, ema)
            return state
        without_best = without_best or path
    if without_best is None:
        return None
    tensors, values = read_tensors(without_best)
    _restore(without_best, tensors, network, optimizers, ema)
    return replace(_state(values), best_step=-1, best_tau=-1.0)


def _state(values: Mapping[str, Any]) -> Progressed:
    return Progressed(**{f.name: values[f.name] for f in fields(Progressed) if f.name in values})


def _is_whole(path: Path, note: Callable[[str], None]) -> bool:
    try:
        read_tensors(path)
    except DamagedFile as error:
        note(f"best weights {path.name} are lost: {error}")
        return False
    return True


def newest(directory: Path) -> Path | None:
    """The newest state; what a run that has to stop leaves behind."""
    return next(reversed(_states(directory)), None)


def save_best(directory: Path, network: nn.Module, step: int, *, write: bool = True) -> None:
    """Write ``best-<step>`` beside those of earlier steps: the states on disk may still name one of them.

    All ranks of a run call this, and one of them with ``write``.
    """
    tensors = {name: whole(value) for name, value in network.named_parameters()}
    if write:
        write_tensors(_path(directory, "best", step), tensors, {"step": step})


def load_best(directory: Path, step: int) -> dict[str, Tensor]:
    """Whole tensors by parameter; raises ``DamagedFile``."""
    return read_tensors(_path(directory, "best", step))[0]


@torch.no_grad()
def load_best_into(network: nn.Module, directory: Path, step: int) -> None:
    tensors = load_best(directory, step)
    for name, parameter in network.named_parameters():
        parameter.copy_(placed_like(tensors[name], parameter))


@torch.no_grad()
def _restore(
    path: Path, tensors: Mapping[str, Tensor], network: nn.Module, optimizers: Optimizers, ema: Ema | None
) -> None:
    weights, named = _of(NETWORK, tensors), dict(network.named_parameters())
    different = sorted(
        n
        for n in weights.keys() | named.keys()
        if n not in weights or n not in named or weights[n].shape != named[n].shape
    )
    if different:
        raise ValueError(f"{path}: the state of another network; different: {', '.join(different)}")
    for name, parameter in named.items():
        parameter.copy_(placed_like(weights[name], parameter))
    optimizers.load_state_tensors(_of(OPTIMIZER, tensors))
    if ema:
        averages = _of(AVERAGE, tensors)
        if not averages:
            raise ValueError(
                f"{path}: expected a moving average of the weights, found none; it was trained without ema"
            )
        ema.load_tensors(averages)
    torch.set_rng_state(tensors[RANDOM].clone())


def _tidy(directory: Path) -> None:
    """Remove all but the newest states and the best weights that they name."""
    states = _states(directory)
    for path in states[:-KEPT]:
        path.unlink()
    named = set()
    for path in states[-KEPT:]:
        try:
            named.add(_path(directory, "best", int(read_values(path).get("best_step", -1))))
        except DamagedFile:
            continue
    for path in directory.glob(f"best-*{SUFFIX}"):
        if path not in named:
            path.unlink()


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _of(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _path(directory: Path, what: str, step: int) -> Path:
    return directory / f"{what}-{step:08d}{SUFFIX}"


def _states(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"step-*{SUFFIX}"))
