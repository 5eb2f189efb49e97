"""What ``doctor`` looks at. Each probe gives one finding and never raises."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from specflow.cli.output import bytes_text
from specflow.data.processes import usable_cores

Level = Literal["ok", "warn", "fail"]
SGLANG_VERSION = "0.5.23"
REQUIRED = {
    "transformers": (5,),
    "zarr": (3,),
    "prefect": (3,),
    "pydantic": (2,),
    "datasets": (4,),
}
MEMORY_BYTES = 4e9
DISK_BYTES = 5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    level: Level
    found: str
    todo: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(store: Path, *, sglang_python: Path | None = None) -> list[Finding]:
    """Every finding about this machine and ``store``."""
    probes: list[tuple[str, Callable[[], Finding]]] = [
        ("python", python),
        ("torch", torch),
        *((name, lambda name=name, version=version: package(name, version)) for name, version in REQUIRED.items()),
        ("bf16", bf16),
        ("accelerator", accelerator),
        ("threads", threads),
        ("memory", memory),
        ("disk", lambda: disk(store)),
        ("prefect home", lambda: prefect_home(store)),
    ]
    if sglang_python is not None:
        probes.append(("sglang", lambda: sglang(sglang_python)))
    return [_guarded(name, probe) for name, probe in probes]


def _guarded(name: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:
        return Finding(name=name, level="fail", found=f"{type(error).__name__}: {error}", todo="reinstall: make setup")


def python() -> Finding:
    return Finding(name="python", level="ok", found=f"{sys.version.split()[0]} ({sys.executable})")


def torch() -> Finding:
    import torch

    return Finding(name="torch", level="ok", found=f"{torch.__version__}, {torch.get_num_threads()} threads by default")


def package(name: str, minimum: tuple[int, ...]) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name=name, level="fail", found="not installed", todo="make setup")
    if tuple(int(part) for part in version.split(".")[: len(minimum)]) < minimum:
        wanted = ".".join(map(str, minimum))
        return Finding(name=name, level="fail", found=version, todo=f"needs {wanted} or newer: make setup")
    return Finding(name=name, level="ok", found=version)


def bf16() -> Finding:
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if torch.cuda.is_available() or (torch.ops.mkldnn._is_mkldnn_bf16_supported() and "AVX512" in capability):
        return Finding(name="bf16", level="ok", found=f"hardware support ({capability})")
    return Finding(
        name="bf16",
        level="warn",
        found=f"no bf16 units ({capability}): bf16 arithmetic is emulated",
        todo="leave `precision: auto`, or use `packed`",
    )


def accelerator() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Finding(name="accelerator", level="ok", found=names)
    return Finding(name="accelerator", level="ok", found="none; the CPU is used")


def threads() -> Finding:
    usable = usable_cores()
    busy = os.getloadavg()[0]
    found = f"{usable} usable, load {busy:.1f}"
    if busy > 0.5 * usable:
        todo = "other work is running: measurements will be off, and more threads than free cores are very slow"
        return Finding(name="threads", level="warn", found=found, todo=todo)
    return Finding(name="threads", level="ok", found=found)


def memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available
    level: Level = "ok" if free >= MEMORY_BYTES else "warn"
    todo = "" if level == "ok" else f"the quickstart needs about {bytes_text(MEMORY_BYTES)}: close something"
    return Finding(name="memory", level=level, found=f"{bytes_text(free)} free", todo=todo)


def disk(store: Path) -> Finding:
    store = store.absolute()
    existing = next(path for path in (store, *store.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{bytes_text(free)} free for {store}"
    if not os.access(existing, os.W_OK):
        return Finding(name="disk", level="fail", found=f"{existing} cannot be written", todo="choose another --store")
    if free < DISK_BYTES:
        todo = f"free {bytes_text(DISK_BYTES - free)}, run `specflow gc`, or choose another --store"
        return Finding(name="disk", level="warn", found=found, todo=todo)
    return Finding(name="disk", level="ok", found=found)


def prefect_home(store: Path) -> Finding:
    server = os.environ.get("PREFECT_API_URL")
    if server:
        return Finding(name="prefect home", level="ok", found=f"server {server} is used")
    # Made by the first run, so only the nearest directory that exists can be tried.
    home = store.absolute() / ".prefect"
    existing = next(path for path in (home, *home.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Finding(name="prefect home", level="fail", found=str(error), todo="choose another --store")
    return Finding(name="prefect home", level="ok", found=str(home))


def sglang(python: Path) -> Finding:
    command = [str(python), "-c", "from importlib.metadata import version; print(version('sglang'))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return Finding(name="sglang", level="fail", found=str(error), todo="give the Python of SGLang's environment")
    version = done.stdout.strip()
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        todo = f"{python} -m pip install sglang=={SGLANG_VERSION}"
        return Finding(name="sglang", level="fail", found=reason[0], todo=todo)
    if version != SGLANG_VERSION:
        return Finding(name="sglang", level="warn", found=version, todo=f"tested with {SGLANG_VERSION}")
    return Finding(name="sglang", level="ok", found=version)
