"""What a candidate selector reaches on held-out text, and whether it or its backbone is the limit, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.reporting import text


def selector_note(row: Mapping[str, Any]) -> str:
    """Sentences on one held-out evaluation; empty for drafters without a selector.

    A round that ends at a wrong proposal ends because its token was no candidate, which is the backbone's limit, or
    because another candidate was chosen, which is the selector's.
    """
    found = row.get("selector")
    if not found:
        return ""
    backbone, selector = found["ended_by_backbone"], found["ended_by_selector"]
    taus = {name: figures.get("tau") for name, figures in row.get("alternatives", {}).items()}
    reach = (
        f"With {found['candidates']} candidates a position the selector walks to tau {text.number(row.get('tau'))}; "
        f"the backbone's first choices reach {text.number(taus.get('backbone'))}, the best path among the candidates "
        f"{text.number(taus.get('oracle'))}."
    )
    recall, accuracy = (_each(found[f"{name}_per_position"]) for name in ("recall", "accuracy"))
    each = (
        f"Where all proposals before it are right, the token is among the candidates in {recall} of the rounds by "
        f"position, and is then chosen in {accuracy}."
    )
    return f"{reach} {each} {_limit(backbone, selector)}"


def _limit(backbone: int, selector: int) -> str:
    ended = backbone + selector
    if not ended:
        return "No round ended at a wrong proposal."
    parts = (
        f"Of {text.count(ended)} rounds that ended at a wrong proposal, {text.percent(backbone / ended)} lacked the "
        f"right token among the candidates and {text.percent(selector / ended)} chose another one"
    )
    if backbone == selector:
        return f"{parts}: backbone and selector limit it alike."
    return f"{parts}: the {'backbone' if backbone > selector else 'selector'} is the limit."


def _each(shares: Sequence[float | None]) -> str:
    return ", ".join(text.percent(share) for share in shares)
