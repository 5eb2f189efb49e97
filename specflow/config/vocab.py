"""``vocab``: the draft vocabulary of drafters that propose from a part of the target's tokens."""

from __future__ import annotations

from pydantic import Field

from specflow.config.base import Section


class VocabParams(Section):
    """Choose the tokens that a drafter can propose."""

    size: int = Field(default=32000, ge=1, description="Tokens of the draft vocabulary.")
