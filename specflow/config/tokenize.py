"""``tokenize``: conversations in, token ids and supervised spans out."""

from __future__ import annotations

from pydantic import Field

from specflow.config.base import Section


class TokenizeParams(Section):
    """Turn conversations into token ids and the spans to learn."""

    max_length: int = Field(default=1024, ge=8, description="Rows are cut to this many tokens.")
    max_skipped: float = Field(
        default=0.05, ge=0.0, le=1.0, description="Largest share of quarantined rows before the stage fails."
    )
