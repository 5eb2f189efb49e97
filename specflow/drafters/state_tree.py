"""Which drafted nodes there are: the state each hands on, its depth, and the ancestors it sees.

Node 0 is the last committed row; keys and values are kept elsewhere, in the order of the nodes from 1 on.
Legend: n nodes without node 0, b new ones, H hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Tree:
    def __init__(self, root_H: Tensor) -> None:
        self._root_1H = root_H.unsqueeze(0)
        self.clear()

    def clear(self) -> None:
        """Only node 0 is left."""
        self._states = self._root_1H
        self._depths = torch.zeros(1, dtype=torch.int64)
        self._seen = torch.zeros(1, 0, dtype=torch.bool)
        self._line = True

    @property
    def nodes(self) -> int:
        """Without node 0."""
        return self._depths.numel() - 1

    def depth_of(self, nodes_b: Tensor) -> Tensor:
        return self._depths[nodes_b]

    def add(self, parents_b: Tensor) -> tuple[Tensor, Tensor | None]:
        """``[b, H]`` states of the parents, and ``[b, n + b]`` which nodes the new ones see; none: all.

        Raises ``IndexError`` for parents that do not exist.
        """
        state_bH, count, before = self._states[parents_b], parents_b.numel(), self.nodes
        # One node behind the newest of a line, as in a chain: it sees everything.
        self._line = self._line and count == 1 and int(parents_b[0]) == before
        self._depths = torch.cat((self._depths, self._depths[parents_b] + 1))
        own = torch.eye(count, dtype=torch.bool)
        seen_bn = torch.cat((self._seen[parents_b], own), dim=1)
        self._seen = torch.cat((F.pad(self._seen, (0, count)), seen_bn))
        return state_bH, None if self._line else seen_bn

    def keep(self, states_bH: Tensor) -> None:
        """The states of the nodes added last."""
        self._states = torch.cat((self._states, states_bH))
