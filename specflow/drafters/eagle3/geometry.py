"""The shape of an EAGLE-3 drafter: everything needed to build its network, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specflow.drafters.sizes import check_heads, check_keys, sizes_of_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Geometry:
    """Sizes of the draft network. ``hidden_size`` and ``vocab_size`` are the target's (the embedding is shared).

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
    layer_ids: tuple[int, ...]
    """Target layers whose outputs are read, 0-based, increasing."""
    vocab_size: int
    draft_vocab_size: int | None
    """Rows of the drafter's own head; none: it proposes with the target's."""
    fc_norm: bool
    norm_output: bool
    max_position_embeddings: int

    def __post_init__(self) -> None:
        check_heads(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        if self.steps < 1 or self.num_layers < 1:
            raise ValueError(f"steps {self.steps}, num_layers {self.num_layers}: expected at least 1 of each")
        if list(self.layer_ids) != sorted(set(self.layer_ids)):
            raise ValueError(f"layer_ids {self.layer_ids} must be unique and increasing")
        if len(self.layer_ids) < 2:
            # An engine tells features from the drafter's own state by their width alone.
            raise ValueError(f"layer_ids {self.layer_ids}: expected at least two layers, usually three")
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size}: expected 1 to {self.vocab_size}")

    @property
    def num_features(self) -> int:
        """K, captured target layers."""
        return len(self.layer_ids)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values["layer_ids"] = list(self.layer_ids)
        values["rope_parameters"] = dict(self.rope_parameters)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Eagle3Geometry:
        """Inverse of ``to_dict``; raises ``ValueError`` naming missing or unknown keys."""
        check_keys(cls, values)
        return cls(**{**values, "layer_ids": tuple(values["layer_ids"])})


def geometry_like_target(
    config: Mapping[str, Any],
    *,
    num_layers: int,
    steps: int,
    layer_ids: Sequence[int],
    draft_vocab_size: int | None = None,
    fc_norm: bool = False,
    norm_output: bool = False,
) -> Eagle3Geometry:
    """Draft layers shaped like the target's own; ``config`` is the target's ``config.json``."""
    return Eagle3Geometry(
        **sizes_of_target(config),
        num_layers=num_layers,
        steps=steps,
        layer_ids=tuple(layer_ids),
        draft_vocab_size=draft_vocab_size,
        fc_norm=fc_norm,
        norm_output=norm_output,
    )
