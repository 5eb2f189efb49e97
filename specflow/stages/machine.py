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


def resolved_threads(scratch: Path, threads: int | None) -> int:
    """``threads`` as asked; none: the number decided when the stage began."""
    from specflow.targets.probe import choose_threads

    return threads or int(remembered(scratch, "threads", choose_threads))


def resolved(scratch: Path, target: Path, *, precision: str, threads: int | None) -> tuple[str, int]:
    """Precision and threads for ``Target.load(target, ...)``, with ``auto`` and none decided once."""
    import torch

    from specflow.targets.probe import choose_precision

    count = resolved_threads(scratch, threads)
    if precision != "auto":
        return precision, count

    def decide() -> str:
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        hidden = int(config["hidden_size"])
        torch.set_num_threads(count)
        return choose_precision(hidden, int(config.get("intermediate_size") or 4 * hidden))

    return str(remembered(scratch, "precision", decide)), count
