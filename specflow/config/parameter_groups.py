"""Which parameters of a drafter are trained how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specflow.config.base import Section


class GroupParams(Section):
    """Parameters by name. The first group that matches a parameter counts; the others are as the section says."""

    match: str = Field(description="Names, with * and ? as in file names: `fc.*`, `layers.0.*`, `*norm.weight`.")
    rate: float = Field(default=1.0, ge=0, description="Multiple of the learning rate; 0: the parameters stay.")
    weight_decay: float | None = Field(
        default=None, ge=0, description="Weight decay; none: the section's, and 0 for norms and biases."
    )
    optimizer: Literal["adamw", "muon"] | None = Field(
        default=None, description="none: the section's, where the parameter's shape and place allow it."
    )
