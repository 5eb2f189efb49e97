"""``capture``: the target's features, into a Zarr store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from specflow.config.base import NOT_IN_KEY, Section, increasing
from specflow.config.regenerate import Precision
from specflow.config.sglang import SglangParams


class CaptureParams(Section):
    """Keep the target's hidden states, as features for training."""

    layer_ids: Annotated[tuple[int, ...], AfterValidator(increasing)] = Field(
        min_length=1,
        description="0-based decoder layers whose output is kept; unique, increasing, never the last layer.",
    )
    shard_tokens: int = Field(default=16384, ge=16, description="Tokens per shard, at least one document.")
    batch_tokens: int = Field(default=2048, ge=16, description="Padded tokens per forward pass.")
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    probe_rows: int = Field(default=2, ge=0, description="Documents per shard recomputed alone as a check.")
    share_prefixes: bool = Field(
        default=True, description="Compute the tokens that documents have in common at their start only once."
    )
    engine: Literal["embedded", "sglang"] = Field(
        default="embedded", description="`embedded`: the target in this process; `sglang`: the server below."
    )
    sglang: SglangParams = Field(default=SglangParams(), description="The server of engine `sglang`.")
    max_skipped: float = Field(
        default=0.05, ge=0.0, le=1.0, description="Largest share of documents with non-finite features."
    )
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; none: chosen by a probe.", json_schema_extra=NOT_IN_KEY
    )
