"""The training curve: one JSON object per line, continued over restarts without doubles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Curve:
    """``metrics.jsonl``: lines with ``loss`` are steps, lines with ``tau`` are held-out evaluations."""

    def __init__(self, path: Path, *, finished: int) -> None:
        """Keep lines up to step ``finished``, drop what a killed run wrote after its checkpoint."""
        self.path = path
        kept = [line for line in self._lines() if line["step"] <= finished] if finished else []
        partial = path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept))
        partial.replace(path)

    def add(self, **values: Any) -> None:
        with self.path.open("a") as handle:
            handle.write(json.dumps(values) + "\n")

    def evaluation(self, step: int) -> dict[str, Any] | None:
        """The evaluation written at ``step``."""
        return next((line for line in self._lines() if line["step"] == step and "tau" in line), None)

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        found = []
        for text in self.path.read_text().splitlines():
            try:
                found.append(json.loads(text))
            except ValueError:  # the line a kill cut off
                continue
        return found
