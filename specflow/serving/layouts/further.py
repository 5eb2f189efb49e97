"""Layouts of other engines, written beside the first one from the same table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class FurtherLayout(Protocol):
    """The module ``specflow.serving.layouts.<name>_format``."""

    def write(
        self,
        directory: Path,
        geometry: Mapping[str, Any],
        manifest: Mapping[str, Any],
        target: Mapping[str, Any],
        trained: Mapping[str, Tensor],
        *,
        dtype: str,
    ) -> None:
        """Write the drafter to ``directory``; ``ValueError`` where the format cannot say what it is."""
        ...


def further_layout(name: str) -> FurtherLayout:
    module: Any = importlib.import_module(f"specflow.serving.layouts.{name}_format")
    layout: FurtherLayout = module
    return layout
