"""Trees of proposals, where a stage decodes with a drafter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from specflow.config.base import Section, wrong


class TreeParams(Section):
    """A dynamic tree of proposals per round (EAGLE-2) instead of a chain."""

    steps: int = Field(default=5, ge=1, description="Levels of the tree.")
    topk: int = Field(default=8, ge=1, description="Nodes of a level that are expanded, and children of each.")
    num_draft_tokens: int = Field(
        default=32, ge=2, description="Rows that the target verifies in a round, the anchor included."
    )

    @model_validator(mode="after")
    def _enough_nodes(self) -> TreeParams:
        most = 1 + self.topk + (self.steps - 1) * self.topk**2
        if self.num_draft_tokens > most:
            raise wrong(
                "more rows than the tree has nodes",
                found=f"num_draft_tokens {self.num_draft_tokens}",
                expected=f"at most {most}: the anchor, topk, and topk * topk for every further step",
            )
        return self


def _form(value: Any) -> str:
    """In brackets, as no key is: it appears in the places of errors."""
    return "[auto]" if isinstance(value, str) else "[tree]"


TreeOrAuto = Annotated[
    Annotated[TreeParams, Tag("[tree]")] | Annotated[Literal["auto"], Tag("[auto]")], Discriminator(_form)
]
"""A tree, or one chosen from measured costs."""
