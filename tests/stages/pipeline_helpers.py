"""A stage context, and tiny artifacts, made in a temporary directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specflow.stages.contract import Artifact, Inputs

FINGERPRINT = {"weights_sha256": "w", "config_sha256": "c", "tokenizer_sha256": "t", "template_sha256": "m"}


class FakeProgress:
    def __init__(self) -> None:
        self.done = 0.0

    def advance(self, amount: float = 1) -> None:
        self.done += amount

    def describe(self, text: str) -> None:
        pass

    def figures(self, values: Mapping[str, float]) -> None:
        pass


class FakeContext:
    """``output`` and ``scratch`` under ``root``; a new output for every run, the scratch stays."""

    item = None

    def __init__(self, root: Path) -> None:
        number = len(list(root.glob("output-*"))) if root.exists() else 0
        self.output = root / f"output-{number}"
        self.scratch = root / "scratch"
        self.output.mkdir(parents=True)
        self.scratch.mkdir(exist_ok=True)
        self.messages: list[str] = []
        self.progresses: list[tuple[float, FakeProgress]] = []

    def log(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[FakeProgress]:
        progress = FakeProgress()
        self.progresses.append((total, progress))
        yield progress


def tiny_target(root: Path, *, seed: int = 0) -> Artifact:
    from specflow.targets.tiny import make_tiny_target

    path = root / "target"
    if not path.exists():
        make_tiny_target(path, seed=seed)
        (path / "fingerprint.json").write_text(json.dumps(FINGERPRINT))
    return Artifact(kind="target", key="t" * 64, path=path)


def artifact(kind: str, path: Path) -> Artifact:
    return Artifact(kind=kind, key=kind[0] * 64, path=path)


def inputs(*artifacts: Artifact) -> Inputs:
    return Inputs(artifacts)


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tree(root: Path) -> dict[str, bytes]:
    """Every file under ``root`` with its bytes."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
