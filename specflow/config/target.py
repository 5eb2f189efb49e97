"""``target``: the frozen language model that a drafter is made for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.base import Section


class TargetParams(Section):
    """Fetch the target model once and keep it as an artifact."""

    source: str = Field(
        description="Where the model comes from: a local directory, a hub id, `package:<module>/<file>.gguf` for a "
        "GGUF file inside an installed Python package, or `random:<seed>` for a tiny random model for tests."
    )
    revision: str | None = Field(default=None, description="Hub revision; only for a hub id.")
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        default="bfloat16", description="Dtype the weights are kept in."
    )
