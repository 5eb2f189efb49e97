"""A moving average of the weights, which walks better than the weights while the learning rate is high."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from specflow.config.drafter import TrainParams
from specflow.training.tensors import placed_like, whole


class Ema:
    """``a <- d a + (1 - d) w`` after every applied step, in fp32, from ``a = w`` at the start.

    ``d = min(decay, (1 + n) / (10 + n))`` at the n-th update: an average that began at random weights forgets them.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._decay, self._updates = decay, 0
        self._average = {name: p.detach().float().clone() for name, p in network.named_parameters()}

    @classmethod
    def build(cls, network: nn.Module, params: TrainParams) -> Ema | None:
        return None if params.ema is None else cls(network, params.ema)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        for name, parameter in network.named_parameters():
            self._average[name].lerp_(parameter.detach().float(), 1.0 - decay)

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """The network holds the averages inside, and its own weights again afterwards."""
        own = {name: p.detach().clone() for name, p in network.named_parameters()}
        try:
            _fill(network, self._average)
            yield
        finally:
            _fill(network, own)

    def fill(self, network: nn.Module) -> None:
        """The network's weights become the averages."""
        _fill(network, self._average)

    def tensors(self) -> dict[str, Tensor]:
        """``average.<parameter>`` and ``updates``, whole."""
        found = {f"average.{name}": whole(value) for name, value in self._average.items()}
        return {**found, "updates": torch.tensor(self._updates)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of ``tensors``; raises ``KeyError`` where one is missing."""
        self._updates = int(tensors["updates"])
        for name, value in self._average.items():
            self._average[name] = placed_like(tensors[f"average.{name}"], value)


def applied(ema: Ema | None, network: nn.Module) -> AbstractContextManager[None]:
    """The averages where there are any, else the weights themselves."""
    return nullcontext() if ema is None else ema.applied(network)


@torch.no_grad()
def _fill(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, parameter in network.named_parameters():
        parameter.copy_(values[name])
