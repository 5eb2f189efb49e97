"""``parity``: proof that a real server with the exported drafter says and accepts what the embedded engine does."""

from __future__ import annotations

from pydantic import Field

from specflow.config.base import NOT_IN_KEY, Section
from specflow.config.sglang import DraftServer


class ParityParams(Section):
    """Prove that a server drafts as the embedded engine does."""

    sglang: DraftServer = Field(default=DraftServer(), description="The server.")
    prompts_per_kind: int | None = Field(default=None, ge=1, description="Held-out prompts per kind; none: all.")
    max_new_tokens: int = Field(default=64, ge=2, description="Longest answer in tokens.")
    transformers_prompts: int = Field(
        default=4, ge=0, description="Prompts that transformers' `generate` answers as well; 0: none."
    )
    near_tie: float | None = Field(
        default=None,
        ge=0,
        description="Largest fp32 logit gap at a differing token that counts as a tie; none: by arithmetic, 0 in fp32.",
    )
    acceptance_gap: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Largest difference of the share of rounds that accept a position, for a server in bf16; in fp32 "
        "every count must be equal.",
    )
    min_accept_length: float = Field(
        default=1.05,
        ge=1,
        description="Tokens per round below which the drafter counts as not working; 1 is none accepted.",
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )
