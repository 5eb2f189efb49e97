"""``export``: a trained drafter as a directory that a serving engine loads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.base import Section
from specflow.config.tree import TreeParams


class ExportParams(Section):
    """Write the drafter as a serving engine loads it."""

    engine: Literal["sglang-0.5.23"] = Field(
        default="sglang-0.5.23", description="Layout and version it is linted for."
    )
    yarn_factor: float | None = Field(
        default=None,
        gt=1,
        description="Stretch the drafter's positions by YaRN, for a target that is served with the same factor; none: "
        "as it was trained.",
    )
    also: tuple[Literal["speculators"], ...] = Field(
        default=(), description="Further layouts beside `draft/`: `speculators`, which vLLM reads (EAGLE-3)."
    )
    dtype: Literal["bfloat16", "float32"] = Field(default="bfloat16", description="Dtype of the exported tensors.")
    tree: TreeParams | None = Field(
        default=None, description="Serve with trees of proposals: the launch flags ask for them; none: chains."
    )
    tree_drafters: tuple[str, ...] | None = Field(
        default=None, description="Drafters that are served with trees, by name; none: all, and each must be able to."
    )
