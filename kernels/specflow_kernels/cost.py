"""What an operator must move and compute at least, so that a measured time can be put beside the machine's limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    bytes: int
    """Read and written once each, whatever the caches do."""
    operations: int
    """Floating-point operations of the products and of what is done for every element; a fused one counts two."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(bytes=self.bytes + other.bytes, operations=self.operations + other.operations)

    def share(self, seconds: float, *, bytes_per_second: float, operations_per_second: float) -> float:
        """The least time that the limits allow over ``seconds``: 1 is a kernel at the limit."""
        return max(self.bytes / bytes_per_second, self.operations / operations_per_second) / seconds

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / max(1, self.bytes)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all elements."""
    return sum(t.numel() * t.element_size() for t in tensors)
