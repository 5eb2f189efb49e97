"""Columns give every row the keys of all rows, with nulls; a row of JSON has only its own."""

from __future__ import annotations

from typing import Any


def without_nulls(value: Any) -> Any:
    """The value without the keys that hold null, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(child) for child in value]
    return value
