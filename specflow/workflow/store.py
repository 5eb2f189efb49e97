"""The artifact store: immutable directories, named by content keys.

Layout under the root: ``<kind>/<key>/`` artifacts; ``.work/<kind>-<key>/{output,scratch}`` attempts;
``.locks`` one lock per key; ``.damaged`` what failed verification; ``.logs`` logs of runs.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from specflow.stages.contract import Artifact
from specflow.workflow.keys import hash_file
from specflow.workflow.record import RECORD_NAME, ArtifactRecord, FileRecord

Pairs = list[tuple[str, str]]
Records = list[ArtifactRecord]
Problems = list[str]

MISSING, FOREIGN = "is missing", "does not belong"


class ArtifactNotFound(LookupError):
    """No artifact, or more than one, has the asked prefix."""


class ArtifactStore:
    """Artifacts below one directory. Safe for any number of processes."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def work(self) -> Path:
        return self.root / ".work"

    @property
    def damaged(self) -> Path:
        return self.root / ".damaged"

    @property
    def logs(self) -> Path:
        return self.root / ".logs"

    def path(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    def attempt_path(self, kind: str, key: str) -> Path:
        return self.work / f"{kind}-{key}"

    def lock(self, kind: str, key: str, *, timeout: float = -1) -> FileLock:
        """Held by whoever makes the artifact; the operating system releases it when the holder dies."""
        directory = self.root / ".locks"
        directory.mkdir(parents=True, exist_ok=True)
        return FileLock(directory / f"{kind}-{key}.lock", timeout=timeout)

    def record(self, kind: str, key: str) -> ArtifactRecord | None:
        """The record, or none if the artifact does not exist or its record cannot be read."""
        try:
            return ArtifactRecord.model_validate_json((self.path(kind, key) / RECORD_NAME).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None

    def find(self, kind: str, key: str) -> Artifact | None:
        record = self.record(kind, key)
        return record.artifact(self.path(kind, key)) if record else None

    def exists(self, kind: str, key: str) -> bool:
        """Whether anything is there, readable or not."""
        return self.path(kind, key).is_dir()

    def records(self) -> Records:
        """All readable records, oldest first."""
        pairs = (self.record(kind, key) for kind, key in self.pairs())
        return sorted((record for record in pairs if record), key=lambda record: record.ended)

    def pairs(self) -> Pairs:
        """``(kind, key)`` of every directory in the store."""
        if not self.root.is_dir():
            return []
        kinds = sorted(p for p in self.root.iterdir() if p.is_dir() and not p.name.startswith("."))
        # Links, as those to promoted exports, are no artifacts.
        return [
            (kind.name, path.name)
            for kind in kinds
            for path in sorted(kind.iterdir())
            if path.is_dir() and not path.is_symlink()
        ]

    def list(self, kind: str | None = None) -> list[Artifact]:
        """Readable artifacts, oldest first."""
        records = (record for record in self.records() if kind in (None, record.kind))
        return [record.artifact(self.path(record.kind, record.key)) for record in records]

    def verify(self, artifact: Artifact) -> Problems:
        """What is wrong with an artifact's files; empty if every byte is as committed."""
        return self.verify_key(artifact.kind, artifact.key)

    def verify_key(self, kind: str, key: str) -> Problems:
        record = self.record(kind, key)
        if record is None:
            return [f"{RECORD_NAME} is missing or unreadable"]
        problems = []
        if (record.kind, record.key) != (kind, key):
            problems.append(f"{RECORD_NAME} belongs to {record.kind}/{record.key[:12]}")
        return problems + [f"{name} {problem}" for name, problem in self.damage(kind, key, record).items()]

    def damage(self, kind: str, key: str, record: ArtifactRecord) -> dict[str, str]:
        """What is wrong with each damaged file of an artifact, by its name; missing ones and foreign ones first."""
        path = self.path(kind, key)
        present = {p.relative_to(path).as_posix() for p in path.rglob("*") if not p.is_dir() or p.is_symlink()}
        found = dict.fromkeys(sorted(set(record.files) - present), MISSING)
        found |= dict.fromkeys(sorted(present - set(record.files) - {RECORD_NAME}), FOREIGN)
        for name, expected in record.files.items():
            if name in present and (problem := self._file_damage(path / name, expected)):
                found[name] = problem
        return found

    def outdated(self, kind: str, key: str) -> Problems:
        """Inputs of an artifact that were made again since, with other content.

        A key names what an artifact is made from, not its bytes: measured times, or another machine, can give an
        input other bytes under its old key, and what was made from the old ones is then no longer reproducible.
        """
        record = self.record(kind, key)
        problems = []
        for name, digest in sorted(record.input_digests.items()) if record else ():
            now = self.record(*name.split("/", 1))
            if now is not None and now.content_digest != digest:
                problems.append(f"input {now.kind} was made again with other content")
        return problems

    @staticmethod
    def _file_damage(path: Path, expected: FileRecord) -> str | None:
        try:
            found = path.stat().st_size
            if found != expected.size:
                return f"has {found} bytes, {expected.size} were committed"
            return None if hash_file(path) == expected.sha256 else "sha256 differs"
        except OSError as error:
            return f"cannot be read: {error}"

    def resolve(self, prefix: str) -> Artifact:
        """The artifact whose key, or ``kind/key``, starts with ``prefix``."""
        kind, _, start = prefix.rpartition("/")
        matches = [(k, key) for k, key in self.pairs() if key.startswith(start) and kind in ("", k)]
        if len(matches) == 1:
            found = self.find(*matches[0])
            if found:
                return found
            raise ArtifactNotFound(f"{'/'.join(matches[0])} has no readable {RECORD_NAME}")
        if not matches:
            raise ArtifactNotFound(f"no artifact starts with {prefix!r} in {self.root}")
        listing = ", ".join(f"{k}/{key[:16]}" for k, key in matches[:8])
        raise ArtifactNotFound(f"{prefix!r} names {len(matches)} artifacts: {listing}; give more characters")

    def quarantine(self, kind: str, key: str) -> Path:
        """Move a damaged artifact out of the way; returns where it went."""
        self.damaged.mkdir(parents=True, exist_ok=True)
        destination = self.damaged / f"{kind}-{key}-{time.time_ns()}"
        self.path(kind, key).rename(destination)
        return destination

    def remove(self, kind: str, key: str) -> None:
        """Delete an artifact: renamed first, so that it is never seen in part."""
        shutil.rmtree(self.quarantine(kind, key))
