"""How much memory a forward and backward pass takes, from shapes alone."""

from __future__ import annotations

from specflow.drafters.dflash.attention import CHUNK_SCORES
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.row_losses import CHUNK_LOGITS

ROWS_PER_PASS = 4096
"""Block rows of one pass: enough to keep products efficient, few enough to keep activations below the weights."""


def anchors_per_pass(geometry: DFlashGeometry) -> int:
    return max(1, ROWS_PER_PASS // geometry.block_size)


def pass_bytes(
    geometry: DFlashGeometry, *, anchors: int, context_rows: int, softmax_rows: int, soft_targets: bool = False
) -> int:
    """Most that a pass of ``anchors`` blocks over ``context_rows`` rows holds, beside weights and their gradients.

    For fp32 without autocast; measured peaks lie within a factor of 1.4 (``tests/training/test_estimate.py``).
    """
    g = geometry
    heads, kv = g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim
    rows, proposals = anchors * g.block_size, anchors * (g.block_size - 1)
    # Kept of a row by one layer: two norms' inputs and results, query and key before and after their norm, value,
    # mixed values, gate, up and their product; then what one layer's backward pass holds beside that.
    kept = 4 * g.hidden_size + 3 * heads + 3 * kv + 3 * g.intermediate_size
    transient = 2 * g.hidden_size + 3 * g.intermediate_size
    of_context = 2 * g.num_features * g.hidden_size + 2 * g.hidden_size + g.num_layers * 5 * kv
    # The gradient of a head row's loss is kept beside the row; a teacher's row beside both.
    of_head = (4 + soft_targets) * g.hidden_size
    # A chunk's logits, their softmax, the teacher's, and what the products and the allocator keep beside them: the
    # same step was seen to peak at 118 and at 145 MB, one buffer apart.
    chunks = 6 * min(max(CHUNK_LOGITS, softmax_rows), proposals * softmax_rows) + 4 * CHUNK_SCORES
    return 4 * (rows * (g.num_layers * kept + transient) + context_rows * of_context + proposals * of_head + chunks)
