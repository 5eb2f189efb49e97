"""Making one artifact: the attempt, and the commit that is whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specflow.stages.contract import Artifact, StageError
from specflow.workflow.keys import hash_file, non_finite
from specflow.workflow.record import RECORD_NAME, ArtifactRecord, FileRecord, describe_environment
from specflow.workflow.store import ArtifactStore

DIGESTS_NAME = "inputs.json"
"""Beside output and scratch: the content of the inputs that the scratch was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an artifact is made from; with the files and metrics it becomes the record."""

    kind: str
    key: str
    stage: str
    item: str | None
    code_version: str
    parameters: Mapping[str, Any]
    key_parameters: Mapping[str, Any]
    inputs: Mapping[str, list[str]]


class Attempt:
    """Directories of an artifact being made. ``scratch`` outlives a kill, ``output`` does not."""

    def __init__(self, store: ArtifactStore, recipe: Recipe) -> None:
        self._store = store
        self._recipe = recipe
        self._started = datetime.now(UTC)
        self._digests: dict[str, str] = {}
        self.path = store.attempt_path(recipe.kind, recipe.key)
        self.output = self.path / "output"
        self.scratch = self.path / "scratch"

    def prepare(self, input_digests: Mapping[str, str] | None = None) -> None:
        """Fresh ``output``; ``scratch`` kept, unless it was made from inputs of other content. Needs the key's lock.

        ``input_digests``: ``content_digest`` of each input, by ``kind/key``.
        """
        self._digests = dict(input_digests or {})
        if self.output.exists():
            shutil.rmtree(self.output)
        known = self.path / DIGESTS_NAME
        if self.scratch.exists() and known.exists() and json.loads(known.read_text()) != self._digests:
            shutil.rmtree(self.scratch)
        self.output.mkdir(parents=True)
        # After the scratch is gone and before a stage writes to it, so that the two agree at any kill.
        partial = known.with_suffix(".partial")
        partial.write_text(json.dumps(self._digests))
        partial.replace(known)
        self.scratch.mkdir(exist_ok=True)

    def commit(self, metrics: Mapping[str, Any]) -> Artifact:
        """Checksum, flush to disk, rename. Raises ``StageError`` for a payload that cannot be recorded."""
        bad = non_finite(metrics)
        if bad:
            raise StageError(f"metric {bad!r} of stage {self._recipe.stage!r} is not a finite number")
        record = ArtifactRecord(
            **{name: getattr(self._recipe, name) for name in Recipe.__dataclass_fields__},
            input_digests=self._digests,
            metrics=dict(metrics),
            files=self._files(),
            environment=describe_environment(),
            started=self._started,
            ended=datetime.now(UTC),
        )
        (self.output / RECORD_NAME).write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        _flush_tree(self.output)
        destination = self._store.path(record.kind, record.key)
        destination.parent.mkdir(parents=True, exist_ok=True)
        self.output.rename(destination)
        flush(destination.parent)
        shutil.rmtree(self.path)
        return record.artifact(destination)

    def _files(self) -> dict[str, FileRecord]:
        files = {}
        for path in sorted(self.output.rglob("*")):
            name = path.relative_to(self.output).as_posix()
            if path.is_symlink():
                raise StageError(f"stage {self._recipe.stage!r} left a link in its output: {name}; copy the file")
            if path.is_file():
                files[name] = FileRecord(size=path.stat().st_size, sha256=hash_file(path))
        if RECORD_NAME in files:
            raise StageError(f"stage {self._recipe.stage!r} wrote {RECORD_NAME}, which belongs to the store")
        if not files:
            raise StageError(f"stage {self._recipe.stage!r} wrote no file")
        return files


def flush(path: Path) -> None:
    """On disk when this returns: the content of a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_tree(root: Path) -> None:
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            flush(Path(directory, name))
        flush(Path(directory))
