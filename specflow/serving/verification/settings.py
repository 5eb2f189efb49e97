"""The sampling settings that a certificate tests side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specflow.decoding.sampling import Sampling


def settings_of(temperatures: Sequence[float], *, top_k: int, drawn: bool) -> dict[str, Sampling]:
    """By name: each temperature with each filter, with certain proposals and (``drawn``) with drawn ones."""
    filters: Mapping[str, dict[str, Any]] = {
        "all tokens": {},
        "top-k": {"top_k": top_k},
        "top-p": {"top_p": 0.8},
        "min-p": {"min_p": 0.1},
    }
    found = {"greedy": Sampling()}
    for temperature in temperatures:
        for name, given in filters.items():
            found[f"T {temperature:g}, {name}"] = Sampling(temperature=temperature, **given)
    penalties: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.2}
    found[f"T {temperatures[0]:g}, penalties"] = Sampling(temperature=temperatures[0], **penalties)
    if drawn:
        found |= {
            f"{name}, drawn proposals": replace(sampling, draft_temperature=1.0)
            for name, sampling in found.items()
            if sampling.temperature
        }
    return found
