"""A drafter on disk: ``config.json``, ``model.safetensors``, ``manifest.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from specflow.drafters.base import Inspectable
from specflow.drafters.files import drafter_directory
from specflow.drafters.registry import Host, get_method
from specflow.features.contract import FeatureContract

CONTRACT_HASH = "feature_contract_hash"
"""Beside the contract in ``manifest.json``, for readers that only compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What travels with the weights of a drafter, so that export and serving need no guess."""

    method: str
    block_size: int
    num_proposals: int
    sample_from_anchor: bool = False
    """Whether the anchor row predicts too; in DFlash it does not."""
    layer_ids: tuple[int, ...]
    layer_convention: str = "output_of_layer"
    mask_token: str | None = None
    """Where the method has masked rows."""
    mask_token_id: int | None = None
    feature_contract: FeatureContract
    """Of the features it was trained on, whole."""
    target_fingerprint: Mapping[str, Any]
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "layer_ids": list(self.layer_ids),
            "feature_contract": self.feature_contract.to_dict(),
            CONTRACT_HASH: self.feature_contract.hash,
        }


def save_drafter(directory: Path, network: nn.Module, manifest: Manifest) -> None:
    """Write the drafter to ``directory``: fp32 weights under the serving engine's names, without prefix."""
    directory.mkdir(parents=True, exist_ok=True)
    config = get_method(manifest.method).network_config(network)
    weights = {name: value.detach().float().contiguous() for name, value in network.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config.json", config), ("manifest.json", manifest.to_dict())):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def read_manifest(path: Path) -> Manifest:
    """The manifest under ``path`` (the drafter's directory or its artifact).

    Raises ``ValueError`` on foreign keys, and where the feature contract is not whole or not the one of its hash.
    """
    file = drafter_directory(path) / "manifest.json"
    values = json.loads(file.read_text())
    stated = values.pop(CONTRACT_HASH, None)
    unknown = sorted(set(values) - {f.name for f in fields(Manifest)})
    if unknown:
        raise ValueError(f"{file}: unknown manifest keys {unknown}")
    if not isinstance(values.get("feature_contract"), dict):
        raise ValueError(f"{file}: expected the whole feature contract, found {values.get('feature_contract')!r}")
    contract = FeatureContract.from_dict(values["feature_contract"], where=f"{file}: feature_contract")
    if stated != contract.hash:
        raise ValueError(f"{file}: the feature contract was changed: its hash is {contract.hash}, {stated} is stated")
    return Manifest(**{**values, "layer_ids": tuple(values["layer_ids"]), "feature_contract": contract})


def load_network(path: Path) -> nn.Module:
    """The trained network in fp32; raises ``ValueError`` unless names and shapes match exactly."""
    directory = drafter_directory(path)
    method = get_method(read_manifest(path).method)
    network = method.build_network(json.loads((directory / "config.json").read_text()))
    weights = load_file(directory / "model.safetensors")
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if expected != found:
        wrong = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
        raise ValueError(
            f"{directory}: {len(wrong)} tensors differ from the geometry, first {wrong[0]!r}: "
            f"expected {expected.get(wrong[0])}, found {found.get(wrong[0])}"
        )
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


def load_drafter(path: Path, target: Host, *, precision: str | None = None) -> Inspectable:
    """A proposer for ``target``; ``precision`` is ``fp32``, ``bf16`` or ``packed``, none: the target's own."""
    network = load_network(path)
    method = get_method(read_manifest(path).method)
    with torch.no_grad():
        return method.build_proposer(network, target, precision=precision or target.precision)
