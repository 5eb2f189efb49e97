"""``pool`` and ``join``: documents and features of several slices, as one set. In flow ``retrain``."""

from __future__ import annotations

from pydantic import Field

from specflow.config.base import NOT_IN_KEY, Section


class PoolParams(Section):
    """Put the documents of all slices together."""

    heldout_newest: int | None = Field(
        default=None,
        ge=1,
        description="Slices whose held-out documents are measured on, the newest ones; none: all. The others' are "
        "still never trained on.",
    )


class JoinParams(Section):
    """Put the features of all slices together."""

    checksums: bool = Field(
        default=True,
        description="Read every shard of the slices and compare it with its commit marker before it is linked.",
        json_schema_extra=NOT_IN_KEY,
    )
