"""The shape of a DFlash drafter: everything needed to build its network, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from specflow.drafters.dflash.chunked_attention import Rule
from specflow.drafters.sizes import check_heads, check_keys, sizes_of_target


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashGeometry:
    """Sizes of the draft network. ``hidden_size`` and ``vocab_size`` are the target's (embedding and head are shared).

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
    block_size: int
    """Rows of a block: the anchor and ``block_size - 1`` proposals."""
    layer_ids: tuple[int, ...]
    """Target layers whose outputs are read, 0-based, increasing."""
    vocab_size: int
    mask_token_id: int
    max_position_embeddings: int
    sliding_window: int | None = None
    """Positions that a row of a sliding layer sees, its own included; at least a block, so only context is cut."""
    sliding_layers: tuple[int, ...] = ()
    causal_block: bool | None = None
    """Whether later rows of its own block are hidden from a row; none: in sliding layers only."""

    def __post_init__(self) -> None:
        check_heads(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        if self.block_size < 2 or self.num_layers < 1:
            raise ValueError(f"block_size {self.block_size} (at least 2), num_layers {self.num_layers} (at least 1)")
        if not self.layer_ids or list(self.layer_ids) != sorted(set(self.layer_ids)):
            raise ValueError(f"layer_ids {self.layer_ids} must be unique and increasing, at least one")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id {self.mask_token_id} is outside the vocabulary of {self.vocab_size}")
        window, layers = self.sliding_window, list(self.sliding_layers)
        if (window is None) == bool(layers) or (window is not None and window < self.block_size):
            raise ValueError(
                f"sliding_window {window} with sliding_layers {layers}: both or neither, the window at least "
                f"block_size {self.block_size}"
            )
        if layers != sorted(set(layers)) or any(not 0 <= i < self.num_layers for i in layers):
            raise ValueError(f"sliding_layers {layers} must be unique, increasing and below {self.num_layers}")

    @property
    def num_features(self) -> int:
        """K, captured target layers."""
        return len(self.layer_ids)

    @property
    def num_proposals(self) -> int:
        """m, rows of a block that predict."""
        return self.block_size - 1

    @property
    def first_row(self) -> int:
        """Row of a block that predicts the first proposal."""
        return self.block_size - self.num_proposals

    def rule(self, layer: int) -> Rule:
        """What a row of this draft layer sees."""
        slides = layer in self.sliding_layers
        causal = slides if self.causal_block is None else self.causal_block
        return Rule(window=self.sliding_window if slides else None, causal=causal)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values["layer_ids"], values["sliding_layers"] = list(self.layer_ids), list(self.sliding_layers)
        values["rope_parameters"] = dict(self.rope_parameters)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of ``to_dict``; raises ``ValueError`` naming unknown keys, and missing ones that have no default."""
        check_keys(cls, values)
        ids = {name: tuple(values[name]) for name in ("layer_ids", "sliding_layers") if name in values}
        return cls(**{**values, **ids})


def geometry_like_target(
    config: Mapping[str, Any],
    *,
    num_layers: int,
    block_size: int,
    layer_ids: Sequence[int],
    mask_token_id: int,
    **others: Any,
) -> DFlashGeometry:
    """Draft layers shaped like the target's own; ``config`` is the target's ``config.json``. ``others``: fields that
    the target does not decide."""
    return DFlashGeometry(
        num_layers=num_layers,
        block_size=block_size,
        layer_ids=tuple(layer_ids),
        mask_token_id=mask_token_id,
        **sizes_of_target(config),
        **others,
    )
