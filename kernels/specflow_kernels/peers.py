"""Public kernels that an operator is measured against; none is a dependency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Nothing is imported before ``prepare`` is called."""

    package: str
    """Its name in the package registry."""
    computes: str
    """What of the operator: a peer that does less must not be read as one that does the same faster."""
    prepare: Callable[[dict[str, Any]], Callable[..., Any]]
    """Made ready for inputs, a function of the operator's arguments. Raises ``ValueError`` on those it cannot take."""

    @property
    def version(self) -> str | None:
        """None where it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    @property
    def absence(self) -> str | None:
        """Why it cannot be measured against on this machine; none: it can."""
        return None if self.version else f"not installed: pip install {self.package}"
