"""Drafter methods by name. A method is a folder here with ``params.py`` and ``method.py``; nothing is registered."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from specflow.config.methods import method_folders
from specflow.drafters.base import Inspectable
from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Ends, Learner, Source


class Host(Protocol):
    """What a proposer borrows from the target it drafts for."""

    @property
    def precision(self) -> str: ...

    def embed(self, ids: Tensor) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the target and its features when a network is made."""

    config: Mapping[str, Any]
    """The target's ``config.json``."""
    layer_ids: tuple[int, ...]
    """Captured layers that the drafter reads, in the order of its features."""
    mask_token_id: int | None = None
    """Where the method asked for a mask token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a method asks of the data."""

    last_hidden: bool = False
    """The target's hidden states after its final norm."""
    mask_token: bool = False
    """A token that no text contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a round of this drafter looks; goes into the manifest."""

    num_proposals: int
    block_size: int
    sample_from_anchor: bool = False


class Method(Protocol):
    """The module ``specflow.drafters.<name>.method``. ``params`` are those of ``params.py``."""

    def needs(self, params: Any) -> Needs: ...

    def new_network(self, params: Any, facts: Facts) -> nn.Module:
        """An uninitialised network for this target; ``ValueError`` if the sizes do not fit."""
        ...

    def initialise(self, network: nn.Module, params: Any, target: TargetWeights, sample_TKH: Tensor) -> str:
        """Set every weight, a pure function of the arguments; returns what they are, for the manifest.

        ``sample_TKH``: rows of stored features.
        """
        ...

    def build_learner(self, network: nn.Module, ends: Ends, params: Any) -> Learner: ...

    def layout(self, network: nn.Module) -> Layout: ...

    def build_network(self, config: dict[str, Any]) -> nn.Module:
        """An uninitialised network from the drafter's ``config.json``."""
        ...

    def network_config(self, network: nn.Module) -> dict[str, Any]:
        """Inverse of ``build_network``: what goes into ``config.json``."""
        ...

    def build_proposer(self, network: nn.Module, target: Host, *, precision: str) -> Inspectable: ...

    def training_hidden(self, network: nn.Module, embed: Callable[[Tensor], Tensor], source: Source) -> Tensor:
        """``[N, m, H]``: what the head reads in training at the source's anchors; ``verify`` compares decoding's."""
        ...


def method_names() -> list[str]:
    return method_folders()


def get_method(name: str) -> Method:
    """The module of a method; raises ``ValueError`` naming the known ones."""
    if name not in method_names():
        raise ValueError(f"unknown drafter method {name!r}; known: {', '.join(method_names())}")
    module: Any = importlib.import_module(f"specflow.drafters.{name}.method")
    method: Method = module
    return method
