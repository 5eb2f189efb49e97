"""``capture``: the target's features, into a Zarr store."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from specflow.config.base import NOT_IN_KEY, Section, increasing, wrong
from specflow.config.regenerate import Precision
from specflow.config.sglang import SglangParams

SCHEMES = ("s3", "gs", "az", "file")
SCALE_BYTES = 2
"""Of the bfloat16 scale that a quantised row of one layer has."""
TOKEN_BYTES = 5
"""Of a token: its id and the supervised mark."""


def _place(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    expected = "a URL such as s3://bucket/prefix; " + ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.path.strip("/")):
        hint = "leave it out to keep the shards in the artifact"
        raise wrong("no place for shards", found=url, expected=expected, hint=hint)
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "credentials come from the environment (AWS_ACCESS_KEY_ID, a role, ..), never from here"
        raise wrong("more than a place", found=f"{parts.scheme}://..", expected="a bucket and a prefix only", hint=hint)
    return url.rstrip("/")


class StoreOptions(Section):
    """How object storage is reached. Nothing secret: credentials come from the environment."""

    endpoint: str | None = Field(
        default=None, description="Address of a server that speaks S3, where it is not Amazon's.", pattern="^https?://"
    )
    region: str | None = Field(default=None, description="Region of the bucket.")
    anonymous: bool = Field(default=False, description="Do not sign requests, as for public buckets.")


class CaptureParams(Section):
    """Keep the target's hidden states, as features for training."""

    layer_ids: Annotated[tuple[int, ...], AfterValidator(increasing)] = Field(
        min_length=1,
        description="0-based decoder layers whose output is kept; unique, increasing, never the last layer.",
    )
    shard_tokens: int = Field(default=16384, ge=16, description="Tokens per shard, at least one document.")
    batch_tokens: int = Field(default=2048, ge=16, description="Padded tokens per forward pass.")
    storage: Literal["bfloat16", "fp8", "int8"] = Field(
        default="bfloat16",
        description="Form that hidden states are stored in; fp8 (e4m3) and int8 have a scale per token and layer.",
    )
    rows: Literal["all", "usable"] = Field(
        default="all", description="Rows that are stored: all, or none after the last that training can use."
    )
    store_url: Annotated[str | None, AfterValidator(_place)] = Field(
        default=None,
        description="URL that shards are written under, as s3://bucket/prefix; none: in the artifact.",
        json_schema_extra=NOT_IN_KEY,
    )
    store_options: StoreOptions = Field(
        default=StoreOptions(), description="How that URL is reached.", json_schema_extra=NOT_IN_KEY
    )
    precision: Precision = Field(default="auto", description="Arithmetic of the target's forward pass.")
    probe_rows: int = Field(
        default=2, ge=0, description="Documents per shard recomputed alone as a check; one of the store always is."
    )
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
        default=None,
        ge=1,
        description="CPU threads of each worker; none: chosen by a probe, or the cores shared out among workers.",
        json_schema_extra=NOT_IN_KEY,
    )
    workers: int = Field(
        default=1,
        ge=1,
        description="Processes that capture, each with the target loaded; any number gives the same features.",
        json_schema_extra=NOT_IN_KEY,
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the target runs; auto: on CUDA where torch finds it."
    )

    def bytes_per_token(self, hidden_size: int) -> int:
        """Stored bytes of a token whose rows are kept."""
        row = 2 * hidden_size if self.storage == "bfloat16" else hidden_size + SCALE_BYTES
        return row * (len(self.layer_ids) + 1) + TOKEN_BYTES
