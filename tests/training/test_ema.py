"""The moving average against its closed form in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specflow.config.drafter import TrainParams
from specflow.training.ema import Ema, applied

torch.set_num_threads(1)


def moved(network: nn.Linear, step: int) -> None:
    with torch.no_grad():
        network.weight.copy_(torch.randn(3, 4, generator=torch.Generator().manual_seed(step)))


def test_average_is_the_weighted_sum_of_all_weights() -> None:
    network = nn.Linear(4, 3, bias=False)
    moved(network, 0)
    seen = [network.weight.detach().double().clone()]
    ema = Ema(network, 0.6)
    for step in range(1, 13):
        moved(network, step)
        ema.update(network)
        seen.append(network.weight.detach().double().clone())
    decays = [min(0.6, (1 + n) / (10 + n)) for n in range(1, 13)]
    assert decays[0] == pytest.approx(2 / 11)
    assert decays[-1] == pytest.approx(13 / 22)  # still rising
    # sum over n of (1 - d_n) prod of later d, the start with the product of all.
    shares = [1 - d for d in decays]
    later = [1.0]
    for d in reversed(decays):
        later.append(later[-1] * d)
    weights = [later[12], *(shares[n] * later[11 - n] for n in range(12))]
    assert sum(weights) == pytest.approx(1.0)
    expected = sum(w * s for w, s in zip(weights, seen, strict=True))
    torch.testing.assert_close(ema.tensors()["average.weight"].double(), expected, rtol=1e-5, atol=1e-6)


def test_the_decay_is_reached() -> None:
    network = nn.Linear(4, 3, bias=False)
    ema = Ema(network, 0.5)
    for step in range(20):
        moved(network, step)
        before = ema.tensors()["average.weight"].double().clone()
        ema.update(network)
    expected = 0.5 * before + 0.5 * network.weight.detach().double()
    torch.testing.assert_close(ema.tensors()["average.weight"].double(), expected, rtol=1e-6, atol=1e-6)


def test_applied_inside_and_gone_afterwards_even_after_an_error() -> None:
    network = nn.Linear(4, 3, bias=False)
    ema = Ema(network, 0.5)
    start = network.weight.detach().clone()
    moved(network, 1)
    own = network.weight.detach().clone()
    with applied(ema, network):
        assert torch.equal(network.weight, start)
    assert torch.equal(network.weight, own)
    with pytest.raises(RuntimeError), ema.applied(network):
        raise RuntimeError
    assert torch.equal(network.weight, own)
    with applied(None, network):
        assert torch.equal(network.weight, own)
    assert Ema.build(network, TrainParams()) is None


def test_tensors_continue_it() -> None:
    network = nn.Linear(4, 3, bias=False)
    first = Ema(network, 0.9)
    moved(network, 1)
    first.update(network)
    second = Ema(network, 0.9)
    second.load_tensors(first.tensors())
    for ema in (first, second):
        moved(network, 2)
        ema.update(network)
    assert all(torch.equal(value, second.tensors()[name]) for name, value in first.tensors().items())
