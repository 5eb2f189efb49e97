"""``artifact.json``: everything known about an artifact besides its payload."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from specflow.stages.contract import Artifact

RECORD_NAME = "artifact.json"
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "zarr", "numpy", "specflow")


class FileRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    sha256: str


class ArtifactRecord(BaseModel):
    """Contents of ``artifact.json``; file names are relative to the artifact, with ``/``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    key: str
    stage: str
    item: str | None = None
    code_version: str
    parameters: dict[str, Any]
    """All parameters of the run."""
    key_parameters: dict[str, Any]
    """Those that are in the key, with content hashes in place of paths."""
    inputs: dict[str, list[str]]
    input_digests: dict[str, str] = {}
    """``content_digest`` of each input when this was made, by ``kind/key``."""
    metrics: dict[str, Any]
    files: dict[str, FileRecord]
    environment: dict[str, Any]
    started: datetime
    ended: datetime

    @property
    def seconds(self) -> float:
        return (self.ended - self.started).total_seconds()

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def content_digest(self) -> str:
        """Hex SHA-256 over names, sizes and hashes of the files: equal for equal payloads."""
        files = sorted((name, file.size, file.sha256) for name, file in self.files.items())
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()

    def artifact(self, path: Path) -> Artifact:
        return Artifact(
            kind=self.kind,
            key=self.key,
            path=path,
            inputs={kind: ",".join(keys) for kind, keys in self.inputs.items()},
            parameters=self.parameters,
            metrics=self.metrics,
            item=self.item,
        )


def describe_environment() -> dict[str, Any]:
    """Python, platform, processor and versions of the packages that do the arithmetic."""
    versions = {}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": platform.platform(),
        "cpu": _processor(),
        "cpu_count": os.cpu_count(),
        "packages": versions,
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
