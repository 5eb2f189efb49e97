"""In which direction the rows of a block see each other."""

from __future__ import annotations


def plain_causality(is_causal: bool | None, *, sliding: int, layers: int) -> bool | None:
    """``is_causal``, or none where it says of every layer what none says; ``sliding`` of ``layers`` layers slide."""
    same = (not is_causal or sliding == layers) and (is_causal or sliding == 0)
    return None if same else is_causal
