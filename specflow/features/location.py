"""Where shards are kept: a directory, or a URL of object storage, with the few operations that shards need.

A directory is read directly, so that files can be mapped; a URL through obstore, which is opened at first use.
Credentials are those that the environment gives (variables, a role, a metadata service) and are never stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

ELSEWHERE = "elsewhere.json"
"""In the artifact, or the work in progress, whose data is kept at a URL: which URL, and how it is reached."""
PIECE = 8 << 20
REQUEST_TIMEOUT = "10min"


class StorageError(Exception):
    """Object storage cannot be reached or refuses; the message names the URL."""


class Place(Protocol):
    """A tree of files. Names are relative, with ``/``. Reading a missing file raises ``FileNotFoundError``."""

    def child(self, name: str) -> Place: ...
    def sizes(self) -> dict[str, int]:
        """Bytes of every file; empty if nothing is there."""
        ...

    def read(self, name: str) -> bytes: ...
    def stream(self, name: str) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Directory:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def child(self, name: str) -> Directory:
        return Directory(self.path / name)

    def sizes(self) -> dict[str, int]:
        return dict(_sizes(os.fspath(self.path), ""))

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def stream(self, name: str) -> Iterator[bytes]:
        with (self.path / name).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


def _sizes(directory: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Names below ``directory`` and their bytes; a quarter of the time that ``Path.rglob`` takes."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(entry.path, f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield prefix + entry.name, entry.stat().st_size


class Bucket:
    """A URL of object storage. ``options``: ``endpoint``, ``region``, ``anonymous``."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._root = url.rstrip("/")
        self._options = {name: value for name, value in (options or {}).items() if value}
        self._prefix = ""

    def __str__(self) -> str:
        return f"{self._root}/{self._prefix}".rstrip("/")

    def to_json(self) -> dict[str, Any]:
        return {"url": str(self), "options": self._options}

    @cached_property
    def store(self) -> Any:
        """The obstore object of the root, whose connections all children use."""
        from obstore.store import from_url

        config: dict[str, Any] = {k: self._options[k] for k in ("endpoint", "region") if k in self._options}
        if self._options.get("anonymous"):
            config["skip_signature"] = True
        with self._errors():
            if self._root.startswith("file://"):
                return from_url(self._root, mkdir=True)
            # A large file is one request, checked while it arrives.
            client: Any = {"timeout": REQUEST_TIMEOUT, "allow_http": config.get("endpoint", "").startswith("http://")}
            return from_url(self._root, config=cast(Any, config) or None, client_options=client)

    def child(self, name: str) -> Bucket:
        made = copy(self)
        made.__dict__["store"] = self.store
        made._prefix = self.path(name)
        return made

    def path(self, name: str) -> str:
        """Of a file, relative to the root's URL."""
        return f"{self._prefix}/{name}".strip("/")

    def sizes(self) -> dict[str, int]:
        import obstore

        cut = len(self._prefix) + 1 if self._prefix else 0
        with self._errors():
            pages = obstore.list(self.store, self._prefix or None, chunk_size=1000)
            return {item["path"][cut:]: item["size"] for page in pages for item in page}

    def read(self, name: str) -> bytes:
        import obstore

        with self._errors(name, reading=True):
            return bytes(obstore.get(self.store, self.path(name)).bytes())

    def stream(self, name: str) -> Iterator[bytes]:
        import obstore

        with self._errors(name, reading=True):
            yield from obstore.get(self.store, self.path(name)).stream(PIECE)

    def read_range(self, name: str, start: int, end: int) -> bytearray:
        """Bytes ``start`` to ``end`` of a file, fewer if it ends before."""
        import obstore

        with self._errors(name, reading=True):
            return bytearray(obstore.get_range(self.store, self.path(name), start=start, end=end))

    def put(self, name: str, data: bytes | Path) -> None:
        """Write a file, whole or not at all."""
        import obstore

        with self._errors(name):
            obstore.put(self.store, self.path(name), data)

    def delete(self, names: Sequence[str]) -> None:
        import obstore

        with self._errors():
            if names:
                obstore.delete(self.store, [self.path(name) for name in names])

    @contextmanager
    def _errors(self, name: str = "", *, reading: bool = False) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            if reading and isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{self}/{name} does not exist") from error
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            todo = "look at the URL, store_options (endpoint, region) and the environment's credentials"
            raise StorageError(f"{self}/{name}: {reason}; {todo}") from error


def kept_elsewhere(directory: Path) -> Bucket | None:
    """Where the data of an artifact or of work in progress is, if it is not in ``directory``.

    Raises ``StorageError`` where what says so is unreadable.
    """
    file = directory / ELSEWHERE
    if not file.exists():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return Bucket(values["url"], values["options"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{file}: expected the URL that data is kept at, found {error!r}") from error


def keep_elsewhere(directory: Path, bucket: Bucket, **finished: Any) -> None:
    """Say in ``directory`` that its data is in ``bucket``; ``finished`` is stated beside it."""
    file = directory / ELSEWHERE
    partial = file.with_name(file.name + ".partial")
    partial.write_text(json.dumps({**bucket.to_json(), **finished}, indent=1, sort_keys=True), encoding="utf-8")
    partial.replace(file)
