"""How much memory a forward and backward pass takes, from shapes alone."""

from __future__ import annotations

from specflow.drafters.dflash.attention import CHUNK_SCORES
from specflow.drafters.eagle3.geometry import Eagle3Geometry
from specflow.drafters.eagle3.head_loss import CACHED_LOGITS, CHUNK_LOGITS


def pass_bytes(geometry: Eagle3Geometry, *, rows: int, depths: int, head_rows: int) -> int:
    """Most that a pass over documents of ``rows`` rows holds, beside weights and their gradients.

    For fp32 without autocast, every row being a start.
    """
    g = geometry
    heads, kv, hidden, inner = g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim, g.hidden_size, g.intermediate_size
    # Kept of a row at one depth: state, normed state, query before and after its rotation, mixed values, the sum and
    # its norm, gate, up and their product; keys and values of its chain so far, joined anew at every depth.
    kept = 4 * hidden + 4 * heads + 3 * inner + 4 * kv
    chain = 2 * kv * depths * (depths - 1) // 2
    once = g.num_features * hidden * 2 + 3 * hidden + 2 * (heads + 2 * kv) + 4 * kv * g.num_layers
    of_head = depths * 4 * hidden + hidden
    own_head = head_rows * hidden if g.draft_vocab_size is not None else 0
    # The drafter's logits and the target's of the same tokens, and what is made of a few of them at a time.
    logits = min(max(CHUNK_LOGITS, depths * head_rows), rows * depths * head_rows)
    chunks = 2 * logits + 5 * min(max(CACHED_LOGITS, depths * head_rows), logits) + 4 * CHUNK_SCORES
    return 4 * (rows * (g.num_layers * (depths * kept + chain) + once + of_head) + own_head + chunks)
