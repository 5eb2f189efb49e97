"""How far two sequences agree, from either end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def common_prefix(one: Sequence[Any], two: Sequence[Any]) -> int:
    """Length of the longest common prefix."""
    shortest = min(len(one), len(two))
    if one[:shortest] == two[:shortest]:
        return shortest
    return next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)


def common_suffix(one: Sequence[Any], two: Sequence[Any]) -> int:
    """Length of the longest common suffix."""
    for i, (a, b) in enumerate(zip(reversed(one), reversed(two), strict=False)):
        if a != b:
            return i
    return min(len(one), len(two))
