"""Drafter methods by name. A method is a folder here with a module ``method``; nothing is registered by hand."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from specflow.drafters.base import Proposer


class Host(Protocol):
    """What a proposer borrows from the target it drafts for."""

    @property
    def precision(self) -> str: ...

    def embed(self, ids: Tensor) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


class Method(Protocol):
    """The module ``specflow.drafters.<name>.method``."""

    def build_network(self, config: dict[str, Any]) -> nn.Module:
        """An uninitialised network from the drafter's ``config.json``."""
        ...

    def network_config(self, network: nn.Module) -> dict[str, Any]:
        """Inverse of ``build_network``: what goes into ``config.json``."""
        ...

    def build_proposer(self, network: nn.Module, target: Host, *, precision: str) -> Proposer: ...


def method_names() -> list[str]:
    """Folders beside this module that hold a method."""
    here = Path(__file__).parent
    found = pkgutil.iter_modules([str(here)])
    return sorted(m.name for m in found if m.ispkg and (here / m.name / "method.py").exists())


def get_method(name: str) -> Method:
    """The module of a method; raises ``ValueError`` naming the known ones."""
    if name not in method_names():
        raise ValueError(f"unknown drafter method {name!r}; known: {', '.join(method_names())}")
    module: Any = importlib.import_module(f"specflow.drafters.{name}.method")
    method: Method = module
    return method
