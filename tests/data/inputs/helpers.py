"""Small sources of prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specflow.config.inputs import InputParams, PromptSource
from specflow.data.inputs.prepare import prepare
from specflow.data.inputs.prepared import Prepared


def message(role: Any, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def asked(text: Any, **more: Any) -> dict[str, Any]:
    """A row with one user's turn."""
    return {"messages": [message("user", text)], **more}


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def source(path: Path, **more: Any) -> PromptSource:
    return PromptSource.model_validate({"path": path, "kind": "k", **more})


def prepared(
    folder: Path,
    train: Sequence[PromptSource],
    heldout: Sequence[PromptSource] = (),
    *,
    chunk_bytes: int = 1 << 24,
    every_turn: bool = False,
    **params: Any,
) -> Prepared:
    params = {"workers": 1, **params}
    folder /= f"inputs-{len(list(folder.glob('inputs-*')))}"  # earlier results stay readable
    return prepare(train, heldout, InputParams(**params), folder=folder, every_turn=every_turn, chunk_bytes=chunk_bytes)


def texts(made: Prepared) -> list[str]:
    """The last turn of every prompt, in order."""
    return [prompt.messages[-1]["content"] for prompt in made.rows()]


def set_aside(made: Prepared) -> list[tuple[int, str]]:
    return [(row.row, row.reason) for row in made.quarantined()]
