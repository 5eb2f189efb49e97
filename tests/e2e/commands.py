"""specflow's commands as a user runs them, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "specflow", *map(str, words)]


def run(*words: str | Path, limit: float, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """``more``: further variables of the environment."""
    return subprocess.run(
        command(*words), cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=limit, check=False
    )


def specflow(*words: str | Path, limit: float) -> Any:
    """The JSON document that a command prints which succeeds."""
    done = run(*words, "--json", limit=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def processes_of(place: Path) -> list[psutil.Process]:
    """Everything whose command line names a place."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and str(place) in " ".join(process.info["cmdline"] or ())
    ]
