"""Training state on disk: one safetensors file, complete or absent, enough to continue bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_SUFFIX = ".safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(slots=True, kw_only=True)
class Progressed:
    """Everything that is not a tensor. No random state: sampling is a pure function of the step."""

    step: int = 0
    """Finished steps."""
    best_step: int = -1
    best_tau: float = -1.0
    blocks: int = 0
    labels: int = 0
    context_rows: int = 0
    documents_without_anchor: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    seconds: float = 0.0
    window_loss: float = 0.0
    """Sums since the last line of the curve."""
    window_weight: float = 0.0
    last_loss: float | None = None


def save_checkpoint(directory: Path, network: nn.Module, optimizer: torch.optim.Optimizer, state: Progressed) -> None:
    """Write ``step-<n>``, then remove older ones; a kill at any moment leaves a complete checkpoint."""
    tensors: dict[str, Tensor] = {f"network.{name}": value for name, value in network.named_parameters()}
    for name, parameter in network.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    target = directory / f"step-{state.step:08d}{_SUFFIX}"
    write_tensors(target, tensors, asdict(state))
    for old in _checkpoints(directory):
        if old != target:
            old.unlink(missing_ok=True)


def load_checkpoint(directory: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> Progressed | None:
    """Restore the newest readable checkpoint; none if there is none. Unreadable files are removed."""
    for path in reversed(list(_checkpoints(directory))):
        try:
            tensors, values = read_tensors(path)
        except (SafetensorError, OSError, ValueError, KeyError):
            path.unlink(missing_ok=True)
            continue
        _restore(tensors, network, optimizer)
        return Progressed(**values)
    return None


def _restore(tensors: dict[str, Tensor], network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[f"network.{name}"])
            # Cloned: a view into the file's buffer may be aligned differently, and with it the order of additions.
            moments = {m: tensors[f"{m}.{name}"].clone() for m in _MOMENTS if f"{m}.{name}" in tensors}
            if moments:
                optimizer.state[parameter] = moments


def write_tensors(path: Path, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
    """Tensors and JSON values in one file, fsynced and renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    plain = {name: value.detach().contiguous() for name, value in tensors.items()}
    save_file(plain, partial, metadata={"values": json.dumps(values)})
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    partial.replace(path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as opened:
        values: dict[str, Any] = json.loads(opened.metadata()["values"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    return tensors, values


def save_best(directory: Path, network: nn.Module, step: int) -> None:
    """Write ``best-<step>`` beside those of earlier steps: the newest checkpoint may still name one of them."""
    write_tensors(_best(directory, step), dict(network.named_parameters()), {"step": step})


def keep_best(directory: Path, step: int) -> None:
    """Remove all but ``best-<step>``; only once a checkpoint that names it is on disk."""
    for path in directory.glob(f"best-*{_SUFFIX}"):
        if path != _best(directory, step):
            path.unlink()


def load_best(directory: Path, step: int) -> dict[str, Tensor]:
    return read_tensors(_best(directory, step))[0]


def _best(directory: Path, step: int) -> Path:
    return directory / f"best-{step:08d}{_SUFFIX}"


def _checkpoints(directory: Path) -> Iterator[Path]:
    yield from sorted(directory.glob(f"step-*{_SUFFIX}"))
