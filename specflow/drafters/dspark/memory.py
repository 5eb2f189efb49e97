"""How much memory a forward and backward pass takes, from shapes alone."""

from __future__ import annotations

from specflow.drafters.dflash import memory as backbone
from specflow.drafters.dspark.geometry import DSparkGeometry


def pass_bytes(geometry: DSparkGeometry, *, anchors: int, context_rows: int, softmax_rows: int) -> int:
    """Most that a pass holds, beside weights and their gradients; see ``specflow.drafters.dflash.memory``."""
    g = geometry
    shared = backbone.pass_bytes(
        g, anchors=anchors, context_rows=context_rows, softmax_rows=softmax_rows, soft_targets=True
    )
    rows = anchors * g.num_proposals
    # Beside DFlash's: a second gradient of every row, and codes with what made them; the table's rows, their two
    # gradients and the one that joins them. A chunk has no more buffers than DFlash's with soft targets.
    return shared + 4 * (rows * (2 * g.hidden_size + 12 * g.head_rank) + 4 * softmax_rows * g.head_rank)
