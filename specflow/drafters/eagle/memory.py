"""How much memory a forward and backward pass takes, from shapes alone."""

from __future__ import annotations

from specflow.drafters.dflash.attention import CHUNK_SCORES
from specflow.drafters.eagle.geometry import EagleGeometry
from specflow.drafters.row_losses import CHUNK_LOGITS


def pass_bytes(geometry: EagleGeometry, *, rows: int, head_rows: int) -> int:
    """Most that a pass over documents of ``rows`` rows holds, beside weights and their gradients.

    For fp32 without autocast, every row being a start.
    """
    g = geometry
    heads, kv, hidden, inner = g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim, g.hidden_size, g.intermediate_size
    # Kept of a row in a layer: state, query before and after its rotation, keys and values, mixed values, the sum and
    # its norm, gate, up and their product.
    layer = 4 * hidden + 4 * heads + 4 * kv + 3 * inner
    # The target's state with its noise, the token's share, what is predicted, its differences and their gradient.
    once = 8 * hidden
    chunks = 5 * min(max(CHUNK_LOGITS, head_rows), rows * head_rows) + 4 * CHUNK_SCORES
    return 4 * (rows * (g.num_layers * layer + once) + chunks)
