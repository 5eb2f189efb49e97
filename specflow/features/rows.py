"""Which rows of a document training can use, whatever the block size or method.

Row t is context for a block whose anchor lies after t, and the teacher's row for the token at t + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.drafters.anchors import legal_anchors


def usable_rows(supervised_T: Tensor) -> int:
    """How many rows, counted from the first, end with the last one that has a use; 0 if none has.

    Used are row t with a legal anchor after t, and row t with a supervised token at t + 1.
    """
    anchors, taught = legal_anchors(supervised_T), supervised_T[1:].nonzero().squeeze(1)
    ends = torch.cat([anchors, taught + 1])
    return int(ends.max()) if ends.numel() else 0
