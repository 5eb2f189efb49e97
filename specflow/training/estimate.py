"""How much memory a training step takes, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.drafters.cross_entropy import CHUNK_LOGITS
from specflow.drafters.dflash.attention import CHUNK_SCORES
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.training.passes import ROWS_PER_PASS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes."""

    weights: int
    """Of the drafter, fp32."""
    optimizer: int
    """Gradients and AdamW's two moments, fp32."""
    frozen: int
    """The target's embedding and head, fp32, and the head's restricted rows."""
    context: int
    """Features, keys and values of what one pass sees, with their gradients."""
    blocks: int
    """What one pass keeps of its block rows for the backward pass."""
    chunks: int
    """Scores and logits held at once."""

    @property
    def step(self) -> int:
        """What a step adds to weights and frozen tensors."""
        return self.optimizer + self.context + self.blocks + self.chunks

    @property
    def total(self) -> int:
        return self.weights + self.frozen + self.step


def memory_estimate(
    geometry: DFlashGeometry, *, blocks: int, context_rows: int, softmax_rows: int, soft_targets: bool = False
) -> MemoryEstimate:
    """For ``blocks`` anchors of a step over documents of ``context_rows`` tokens in all; fp32 throughout.

    An upper bound of the documents' part: it takes the context of the whole step for that of a pass. Features that
    the documents keep in memory and the libraries themselves are not counted.
    """
    g = geometry
    heads, kv = g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim
    layer = g.hidden_size * (2 * heads + 2 * kv + 3 * g.intermediate_size)
    parameters = g.num_layers * layer + g.num_features * g.hidden_size**2
    per_pass = min(blocks, max(1, ROWS_PER_PASS // g.block_size))
    rows, proposals = per_pass * g.block_size, per_pass * (g.block_size - 1)
    # Kept of a row by one layer: two norms' inputs and results, query and key before and after their norm, value,
    # mixed values, gate, up and their product; then what one layer's backward pass holds beside that.
    kept = 4 * g.hidden_size + 3 * heads + 3 * kv + 3 * g.intermediate_size
    transient = 2 * g.hidden_size + 3 * g.intermediate_size
    of_context = 2 * g.num_features * g.hidden_size + 2 * g.hidden_size + g.num_layers * 5 * kv
    # The gradient of a head row's loss is kept beside the row; a teacher's row beside both.
    of_head = (4 + soft_targets) * g.hidden_size
    return MemoryEstimate(
        weights=4 * parameters,
        optimizer=12 * parameters,
        frozen=4 * g.hidden_size * (2 * g.vocab_size + (softmax_rows if softmax_rows < g.vocab_size else 0)),
        context=4 * context_rows * of_context,
        blocks=4 * (rows * (g.num_layers * kept + transient) + proposals * of_head),
        chunks=4 * (max(3 * CHUNK_LOGITS, 3 * softmax_rows) + 4 * CHUNK_SCORES),
    )
