"""What decoding needs from a drafter, whatever its method."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Proposer(Protocol):
    """Proposes a chain for one request. State is the drafter's own KV of committed positions.

    Shapes: T committed rows of one target pass, K captured layers, H hidden size, m proposals.
    """

    @property
    def num_proposals(self) -> int:
        """m, proposals per round."""
        ...

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs ``extend`` expects, in this order."""
        ...

    def reset(self, capacity: int) -> None:
        """Forget the request; reserve room for ``capacity`` committed positions."""
        ...

    def extend(self, features_TKH: Tensor) -> None:
        """Append the features of rows the target has just committed."""
        ...

    def propose(self, anchor: int) -> Tensor:
        """``[m]`` int64 proposals after ``anchor``, which sits at the next position."""
        ...
