"""A small valid configuration to spoil."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.config.errors import InputErrors, InputProblem
from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides

VALID = """\
name: small
target:
  source: random:0
regenerate:
  train:
    - {path: train.jsonl, kind: a}
  heldout:
    - {path: held.jsonl, kind: a}
  max_new_tokens: 8
capture:
  layer_ids: [1, 2]
drafters:
  first:
    method: dflash
    train:
      steps: 5
  second:
    method: dflash
    layer_ids: [2]
"""


def write(directory: Path, text: str = VALID) -> Path:
    """The configuration and its two prompt files."""
    for name in ("train", "held"):
        (directory / f"{name}.jsonl").write_text(f'{{"messages": [{{"role": "user", "content": "{name}"}}]}}\n')
    path = directory / "config.yaml"
    path.write_text(text)
    return path


def problems(path: Path | str, *settings: str) -> list[InputProblem]:
    """Everything that loading reports."""
    with pytest.raises(InputErrors) as caught:
        load_config(path, parse_overrides(settings))
    return list(caught.value.problems)
