"""``verify``: proofs that the exported drafter is the trained one and changes no output."""

from __future__ import annotations

from pydantic import Field

from specflow.config.base import NOT_IN_KEY, Section
from specflow.config.regenerate import Precision


class VerifyParams(Section):
    """Prove that the exported drafter changes no output."""

    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    max_new_tokens: int = Field(default=64, ge=1, description="Longest answer in tokens.")
    precision: Precision = Field(default="fp32", description="Arithmetic for the equality of outputs.")
    near_tie: float | None = Field(
        default=None,
        ge=0,
        description="Largest fp32 logit gap at a differing token that counts as a tie; none: by arithmetic, 0 in fp32.",
    )
    documents: int = Field(
        default=8, ge=1, description="Stored held-out documents for the checks of export, training and alignment."
    )
    anchors_per_document: int = Field(default=8, ge=1, description="Blocks compared in each of them.")
    batch_size: int = Field(default=8, ge=1, description="Prompts of plain decoding run together.")
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )
