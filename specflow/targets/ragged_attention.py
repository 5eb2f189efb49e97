"""The attention of a pass whose requests have different numbers of rows, all of them one after another in one line.

Everything but attention works on rows alone, so it computes no row that nobody asked for. Attention sees every request
with as many rows as the longest one has; what it says of the others is dropped.
Legend: B requests, T rows of the longest, N rows of all requests, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specflow.targets.attention import AttentionPass


class RaggedPass(AttentionPass):
    """``counts``: rows of each request. Raises ``ValueError`` unless every request has at least one."""

    __slots__ = ("_request_N", "_row_N", "counts")

    def __init__(self, committed: list[int], counts: Sequence[int], device: torch.device) -> None:
        if len(counts) != len(committed) or min(counts) < 1:
            raise ValueError(f"rows {list(counts)} for {len(committed)} requests: expected at least one of each")
        super().__init__(committed, max(counts), device)
        self.counts = tuple(counts)
        self.start = None  # rows of the requests end at different places, so visibility is always by mask
        self.length = max(before + count for before, count in zip(committed, counts, strict=True))
        sizes_B = torch.tensor(self.counts)
        request_N = torch.arange(len(self.counts)).repeat_interleave(sizes_B)
        first_N = (sizes_B.cumsum(0) - sizes_B).repeat_interleave(sizes_B)
        self._request_N = request_N.to(device)
        self._row_N = (torch.arange(len(request_N)) - first_N).to(device)
        self.position_ids = self.positions_BT[self._request_N, self._row_N].unsqueeze(0)

    def places(self) -> tuple[Tensor, Tensor]:
        return self._request_N.unsqueeze(0), self.position_ids

    def spread(self, query_1HND: Tensor) -> Tensor:
        _, heads, _, width = query_1HND.shape
        spread_BTHD = query_1HND.new_zeros(len(self.counts), self.rows, heads, width)
        spread_BTHD[self._request_N, self._row_N] = query_1HND[0].transpose(0, 1)
        return spread_BTHD.transpose(1, 2)

    def gathered(self, out_BTHD: Tensor) -> Tensor:
        return out_BTHD[self._request_N, self._row_N].unsqueeze(0)

    def committable(self, counts_B: Tensor) -> bool:
        return bool((counts_B <= torch.tensor(self.counts)).all())
