"""What a stage measured about the machine when it began, kept so that a resumed run computes the same.

``precision: auto`` and ``threads: none`` are decided by short timings, which another moment may decide otherwise.
The first decision is written to ``machine.json`` in the stage's scratch directory and used from then on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MACHINE_FILE = "machine.json"


def remembered(scratch: Path, name: str, decide: Callable[[], Any]) -> Any:
    """The value of ``name`` decided earlier in ``scratch``; else that of ``decide``, a JSON value, which is kept."""
    path = scratch / MACHINE_FILE
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if name not in known:
        known[name] = decide()
        partial = path.with_name(f"{MACHINE_FILE}.partial")
        partial.write_text(json.dumps(known, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(path)
    return known[name]


def resolved_threads(scratch: Path, threads: int | None, *, workers: int = 1) -> int:
    """``threads`` as asked, of each of ``workers`` processes; none: the number decided when the stage began."""
    from specflow.data.processes import usable_cores
    from specflow.targets.probe import choose_threads

    def decide() -> int:
        return choose_threads() if workers == 1 else max(1, usable_cores() // workers)

    return threads or int(remembered(scratch, "threads", decide))


def resolved_device(scratch: Path, device: str) -> str:
    """``device`` as asked; ``auto``: the one that was there when the stage began. Raises ``StageError``."""
    from specflow.stages.contract import StageError
    from specflow.targets.base import TargetError
    from specflow.targets.device import choose_device

    asked = remembered(scratch, "device", lambda: choose_device(device)) if device == "auto" else device
    try:
        return choose_device(str(asked))
    except TargetError as error:
        raise StageError(str(error)) from error


def resolved(
    scratch: Path, target: Path, *, precision: str, threads: int | None, workers: int = 1, device: str = "cpu"
) -> tuple[str, int]:
    """Precision and threads for ``Target.load(target, ...)``, with ``auto`` and none decided once.

    On a device other than the CPU ``auto`` is bf16.
    """
    import torch

    from specflow.targets.probe import choose_precision

    count = resolved_threads(scratch, threads, workers=workers)
    if precision != "auto":
        return precision, count

    def decide() -> str:
        if device != "cpu":
            return "bf16"
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        hidden = int(config["hidden_size"])
        torch.set_num_threads(count)
        return choose_precision(hidden, int(config.get("intermediate_size") or 4 * hidden))

    return str(remembered(scratch, "precision", decide)), count
