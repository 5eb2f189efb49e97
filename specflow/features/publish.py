"""A finished store, from the directory it was made in to where it is kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from specflow.features.contract import CONTRACT_FILE
from specflow.features.store import STORE


def link_store(source: Path, destination: Path) -> None:
    """The contract, and the store by hard links: were this killed, ``source`` would still hold every shard."""
    shutil.copy2(source / CONTRACT_FILE, destination / CONTRACT_FILE)
    shutil.copytree(
        source / STORE, destination / STORE, copy_function=os.link, ignore=shutil.ignore_patterns("*.partial")
    )
