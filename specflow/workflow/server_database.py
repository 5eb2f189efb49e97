"""An empty database of this Prefect version, kept beside the installed packages: migrating to one takes ten seconds."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

DATABASE = "prefect.db"


def template(prefix: Path | None = None) -> Path:
    version = importlib.metadata.version("prefect")
    return Path(prefix or sys.prefix) / "var" / "specflow" / f"prefect-{version}.db"


def copy_template(home: Path, source: Path) -> bool:
    """Give a ``home`` without a database a copy of the template; whether it has none still, and will migrate."""
    database = home / DATABASE
    if database.exists():
        return False
    partial = home / f"{DATABASE}.partial"
    try:
        shutil.copyfile(source, partial)
        partial.replace(database)
    except OSError:  # there is none yet
        return True
    return False


def keep_template(home: Path, destination: Path) -> None:
    """Keep a database that was just migrated and holds no run; where that is not permitted, the next one migrates."""
    partial = destination.with_suffix(f".{os.getpid()}")
    with suppress(OSError, sqlite3.Error):
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(home / DATABASE)) as connection:
                connection.execute("vacuum into ?", (str(partial),))
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)
