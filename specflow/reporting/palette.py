"""Colours of every picture: distinguishable with any colour vision, legible on light and dark paper."""

from __future__ import annotations

from collections.abc import Iterable

PLAIN = "#8A94A3"
DRAFTER = "#2F7EC4"
PREDICTED = "#9CC3E6"
ROUND_PARTS = {"draft": "#E08E0B", "verify": "#2F7EC4", "state": "#1B9E77", "other": "#8A94A3"}
SERIES = ("#2F7EC4", "#E08E0B", "#1B9E77", "#C7559A", "#7A6FD0", "#5BA8D6", "#B5572A", "#8C8C2E")


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """One colour per name, in the order given; the palette repeats after eight."""
    return {name: SERIES[i % len(SERIES)] for i, name in enumerate(names)}
