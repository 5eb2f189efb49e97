"""How serving engines load each method: a module here with the method's name; nothing is registered."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specflow.config.methods import method_folders
from specflow.serving.draft import Rule

if TYPE_CHECKING:
    from torch import Tensor

ENGINES = ("sglang-0.5.23",)


class Layout(Protocol):
    """The module ``specflow.serving.layouts.<method>``.

    ``geometry``: the drafter's own ``config.json``; ``config``: the one the engine reads; ``target``: the target's.
    """

    @property
    def RULES(self) -> Mapping[str, Rule]:
        """Lint rules by name."""
        ...

    def layout_config(
        self, geometry: Mapping[str, Any], manifest: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str
    ) -> dict[str, Any]:
        """``config.json`` of the draft; ``ValueError`` where the manifest contradicts itself or the engine."""
        ...

    def layout_shapes(self, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Exact names and shapes of the checkpoint that ``config`` describes (linear weights ``[out, in]``)."""
        ...

    def geometry_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The drafter's own config as an engine understands ``config``: the inverse of ``layout_config``."""
        ...

    def export_tensors(self, trained: Mapping[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
        """The trained tensors under the engine's names, in the dtypes it loads.

        Raises ``ValueError`` naming every tensor that its dtype cannot hold.
        """
        ...

    def drafter_tensors(self, exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inverse of ``export_tensors``, in fp32."""
        ...

    def launch_flags(self, manifest: Mapping[str, Any]) -> dict[str, str]:
        """The engine's speculative flags; ``ValueError`` where the manifest contradicts itself."""
        ...

    def read_back(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes that transformers must find in ``config``, with their values."""
        ...


def layout_names() -> list[str]:
    """Methods of ours that an engine can load."""
    here = Path(__file__).parent
    return [name for name in method_folders() if (here / f"{name}.py").exists()]


def get_layout(method: str) -> Layout:
    """The layout of a method; raises ``ValueError`` naming those there are."""
    if method not in layout_names():
        raise ValueError(f"expected a method of {layout_names()}, found {method!r} in the drafter's manifest")
    module: Any = importlib.import_module(f"specflow.serving.layouts.{method}")
    layout: Layout = module
    return layout
