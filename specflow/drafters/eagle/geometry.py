"""The shape of an EAGLE drafter: everything needed to build its network, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specflow.drafters.sizes import check_heads, check_keys, sizes_of_target


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleGeometry:
    """Sizes of the draft network. ``hidden_size`` and ``vocab_size`` are the target's: embedding and head are shared.

    Raises ``ValueError`` from the constructor when the sizes do not fit together.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, Any]
    """As in a transformers 5 config: at least ``rope_type`` and ``rope_theta``."""
    steps: int
    """Proposals of a chain."""
    vocab_size: int
    draft_vocab_size: int | None
    """Rows of the target's head that are used; none: all."""
    max_position_embeddings: int

    def __post_init__(self) -> None:
        check_heads(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        if self.steps < 1 or self.num_layers < 1:
            raise ValueError(f"steps {self.steps}, num_layers {self.num_layers}: expected at least 1 of each")
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size < self.vocab_size:
            raise ValueError(
                f"draft_vocab_size {self.draft_vocab_size}: expected 1 to {self.vocab_size - 1}; leave it out for all"
            )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rope_parameters": dict(self.rope_parameters)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EagleGeometry:
        """Inverse of ``to_dict``; raises ``ValueError`` naming missing or unknown keys."""
        check_keys(cls, values)
        return cls(**values)


def geometry_like_target(
    config: Mapping[str, Any], *, num_layers: int, steps: int, draft_vocab_size: int | None = None
) -> EagleGeometry:
    """Draft layers shaped like the target's own; ``config`` is the target's ``config.json``."""
    return EagleGeometry(
        **sizes_of_target(config), num_layers=num_layers, steps=steps, draft_vocab_size=draft_vocab_size
    )
