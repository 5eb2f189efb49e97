"""The cost table that SGLang reads (``--speculative-dspark-sps-table-path``), in both its forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specflow.costs.tables import AdditiveTable, RowTable

ADDITIVE_FIELDS = {
    "bias_seconds": "bias_seconds",
    "bs_probes": "requests",
    "alpha_seconds": "alpha_seconds",
    "m_probes": "rows",
    "theta_seconds": "theta_seconds",
}
ROW_FIELDS = {
    "sample_batch_tokens": "rows",
    "sample_steps_per_sec": "rounds_per_second",
    "max_batch_tokens": "max_rows",
}


def table_as_json(table: RowTable | AdditiveTable) -> dict[str, Any]:
    """By SGLang's names."""
    fields = ADDITIVE_FIELDS if isinstance(table, AdditiveTable) else ROW_FIELDS
    values = {theirs: getattr(table, ours) for theirs, ours in fields.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def table_from_json(data: Any) -> RowTable | AdditiveTable:
    """Raises ``ValueError`` on what is no table."""
    if not isinstance(data, dict):
        raise ValueError(f"not a cost table: expected a mapping, found {type(data).__name__}")
    additive = "bias_seconds" in data
    fields = ADDITIVE_FIELDS if additive else ROW_FIELDS
    missing = [name for name in fields if name not in data]
    if missing:
        raise ValueError(f"not a cost table: {', '.join(missing)} missing")
    values = {ours: data[theirs] for theirs, ours in fields.items()}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return AdditiveTable(**values) if additive else RowTable(**values)
    except TypeError as error:
        raise ValueError(f"not a cost table: {error}") from error


def write_table(path: Path, table: RowTable | AdditiveTable) -> None:
    # The server tells the two forms apart by the text "bias_seconds", so nothing else goes into the file.
    path.write_text(json.dumps(table_as_json(table), allow_nan=False) + "\n", encoding="utf-8")


def read_table(path: Path) -> RowTable | AdditiveTable:
    """Raises ``ValueError`` naming the file."""
    try:
        return table_from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
