"""Warm start: weights of another drafter, taken by name, with an account of what was taken, is new, was left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from specflow.drafters.files import artifact_name, drafter_directory, weight_files
from specflow.training.tensors import placed_like

PREFIXES = ("", "model.", "draft_model.")
"""What stands before the names in checkpoints that wrap the drafter in another module."""
EXAMPLES = 4


class CannotStart(ValueError):
    """The other drafter does not fit; the message says everything that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Names with shapes; ``different``: settings of the two drafters that are not equal, ours after theirs."""

    source: str
    """The key of an artifact, else the directory's name."""
    sha256: str
    """Of the weights."""
    taken: Mapping[str, tuple[int, ...]]
    new: Mapping[str, tuple[int, ...]]
    left: Mapping[str, tuple[int, ...]]
    different: Mapping[str, tuple[Any, Any]]

    def describe(self) -> str:
        """Some lines for the log."""
        lines = [
            f"starts from {self.source}: {_count(self.taken)} taken, {_count(self.new)} new, {_count(self.left)} left"
        ]
        lines += [f"  {what}: {_listing(found)}" for what, found in (("new", self.new), ("left", self.left)) if found]
        lines += [f"  {name} was {theirs} there and is {ours} here" for name, (theirs, ours) in self.different.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For the manifest: shapes of what is new and left, and how much was taken."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "taken": len(self.taken),
            "taken_parameters": sum(_size(s) for s in self.taken.values()),
            "new": {name: list(shape) for name, shape in sorted(self.new.items())},
            "left": {name: list(shape) for name, shape in sorted(self.left.items())},
            "different": {name: list(pair) for name, pair in sorted(self.different.items())},
        }


@torch.no_grad()
def warm_start(network: nn.Module, path: Path, *, config: Mapping[str, Any]) -> WarmStart:
    """Copy what ``path`` has under the network's names into it; what it lacks stays as it is.

    ``path``: a drafter's directory or artifact, ours or in the public layout. ``config``: the network's own, compared
    with the other's. Raises ``CannotStart`` where no name matches, or listing every tensor of another shape or with
    values that are not finite.
    """
    directory = drafter_directory(path)
    found = _tensors(directory, network)
    own = dict(network.named_parameters())
    wrong = [
        f"{name}: {tuple(found[name].shape)} there, {tuple(p.shape)} here"
        for name, p in own.items()
        if name in found and found[name].shape != p.shape
    ]
    wrong += [
        f"{name}: values that are not finite" for name in own if name in found and not found[name].isfinite().all()
    ]
    # Such as the tokens that the rows of a head stand for.
    fixed = {name: value for name, value in network.state_dict().items() if name not in own}
    wrong += [
        f"{name}: other values there, and it is not trained"
        for name, value in fixed.items()
        if name in found and not torch.equal(found[name].to(value.dtype), value.cpu())
    ]
    if wrong:
        raise CannotStart(f"{path}: {len(wrong)} tensors do not fit: {'; '.join(wrong)}")
    taken = [name for name in own if name in found]
    if not taken:
        raise CannotStart(f"{path}: no tensor of the drafter is there; it has {_listing(_shapes(found))}")
    for name in taken:
        own[name].copy_(placed_like(found[name].to(own[name].dtype), own[name]))
    return WarmStart(
        source=artifact_name(path),
        sha256=_digest(weight_files(directory)),
        taken={n: tuple(own[n].shape) for n in taken},
        new={n: tuple(p.shape) for n, p in own.items() if n not in found},
        left=_shapes({n: t for n, t in found.items() if n not in own and n not in fixed}),
        different=_differences(directory, config),
    )


def _tensors(directory: Path, network: nn.Module) -> dict[str, Tensor]:
    """All tensors, without the prefix under which most of them have names of the network."""
    found: dict[str, Tensor] = {}
    for file in weight_files(directory):
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    own = {name for name, _ in network.named_parameters()}
    prefix = max(PREFIXES, key=lambda p: sum(name.removeprefix(p) in own for name in found if name.startswith(p)))
    return {name.removeprefix(prefix): value for name, value in found.items()}


def _differences(directory: Path, config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    theirs = _settings(json.loads((directory / "config.json").read_text()))
    ours = _settings(dict(config))
    return {
        name: (theirs[name], ours[name]) for name in sorted(theirs.keys() & ours.keys()) if theirs[name] != ours[name]
    }


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Plain settings under our names, those of the method's own section (public layout) included."""
    renamed = {"target_layer_ids": "layer_ids", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
               "num_key_value_heads": "num_kv_heads"}  # fmt: skip
    nested = [value for name, value in config.items() if name.endswith("_config") and isinstance(value, dict)]
    merged = {name: value for part in (config, *nested) for name, value in part.items()}
    return {renamed.get(name, name): value for name, value in merged.items() if not isinstance(value, dict)}


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _count(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return f"{len(shapes)} tensors ({sum(_size(s) for s in shapes.values()) / 1e6:.2f} M parameters)"


def _listing(shapes: Mapping[str, tuple[int, ...]]) -> str:
    shown = [f"{name} {list(shape)}" for name, shape in list(shapes.items())[:EXAMPLES]]
    return ", ".join(shown) + (f" and {len(shapes) - EXAMPLES} more" if len(shapes) > EXAMPLES else "")
