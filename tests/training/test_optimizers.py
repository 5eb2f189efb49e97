"""AdamW and Muon against float64 closed forms, which parameter goes to which, and their state."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specflow.config.drafter import TrainParams
from specflow.config.parameter_groups import GroupParams
from specflow.training import optimizers
from specflow.training.optimizers import Optimizers, WrongGroups
from tests.drafters.dspark_helpers import dspark_network
from tests.training.helpers import fresh

torch.set_num_threads(1)
STEPS = 6


class Small(nn.Module):
    """One parameter of every sort."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 4, bias=False)])
        self.norm = nn.LayerNorm(4, bias=False)
        self.lm_head = nn.Linear(4, 7, bias=False)


def small() -> Small:
    torch.manual_seed(3)
    return Small()


def gradients(network: nn.Module, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(p.shape, generator=generator) for name, p in network.named_parameters()}


def rates(step: int) -> float:
    return 0.02 / (1 + step)


def train(network: nn.Module, found: Optimizers, steps: range) -> None:
    for step in steps:
        found.zero_grad()
        for name, gradient in gradients(network, step).items():
            network.get_parameter(name).grad = gradient
        found.set_rate(rates(step))
        found.step()


def adamw(weight: Tensor, name: str, network: nn.Module, *, decay: float, multiple: float = 1.0) -> Tensor:
    """Loshchilov and Hutter's algorithm 2 in float64."""
    w, first, second = weight.double(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
    for step in range(STEPS):
        g, rate = gradients(network, step)[name].double(), multiple * rates(step)
        first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
        corrected = (first / (1 - 0.9 ** (step + 1))) / ((second / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8)
        w = w - rate * decay * w - rate * corrected
    return w


def orthogonalised(update: Tensor) -> Tensor:
    """Five Newton-Schulz iterations of Jordan's quintic in float64."""
    x = update if update.shape[0] <= update.shape[1] else update.T
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if update.shape[0] <= update.shape[1] else x.T


def muon(weight: Tensor, name: str, network: nn.Module, *, decay: float) -> Tensor:
    w, momentum = weight.double(), torch.zeros_like(weight).double()
    for step in range(STEPS):
        g, rate = gradients(network, step)[name].double(), rates(step)
        momentum = 0.95 * momentum + 0.05 * g
        update = orthogonalised(0.05 * g + 0.95 * momentum)
        w = w - rate * decay * w - rate * 0.2 * math.sqrt(max(w.shape)) * update
    return w


def test_adamw_equals_its_closed_form_with_groups() -> None:
    network = small()
    start = {name: p.detach().clone() for name, p in network.named_parameters()}
    groups = (GroupParams(match="layers.1.*", rate=0.5, weight_decay=0.3), GroupParams(match="norm.*", rate=0.0))
    train(network, optimizers.build(network, TrainParams(weight_decay=0.1, groups=groups)), range(STEPS))
    expected: dict[str, dict[str, float]] = {
        "embed_tokens.weight": {"decay": 0.1},
        "layers.0.weight": {"decay": 0.1},
        "layers.0.bias": {"decay": 0.0},
        "layers.1.weight": {"decay": 0.3, "multiple": 0.5},
        "norm.weight": {"decay": 0.0, "multiple": 0.0},
        "lm_head.weight": {"decay": 0.1},
    }
    assert expected.keys() == start.keys()
    for name, options in expected.items():
        wanted = adamw(start[name], name, network, **options)
        torch.testing.assert_close(network.get_parameter(name).double(), wanted, rtol=1e-5, atol=1e-7)
    assert torch.equal(network.norm.weight, start["norm.weight"])


def test_muon_equals_its_closed_form_and_leaves_the_rest_to_adamw() -> None:
    network = small()
    start = {name: p.detach().clone() for name, p in network.named_parameters()}
    found = optimizers.build(network, TrainParams(optimizer="muon", weight_decay=0.1))
    train(network, found, range(STEPS))
    for name in ("embed_tokens.weight", "layers.0.bias", "norm.weight", "lm_head.weight"):
        wanted = adamw(start[name], name, network, decay=0.1 if start[name].ndim > 1 else 0.0)
        torch.testing.assert_close(network.get_parameter(name).double(), wanted, rtol=1e-5, atol=1e-7)
    for name in ("layers.0.weight", "layers.1.weight"):
        wanted = muon(start[name], name, network, decay=0.1)
        moved = (wanted - start[name].double()).norm()
        # The iterations run in bf16, whose 8 bits they amplify.
        assert (network.get_parameter(name).double() - wanted).norm() < 0.03 * moved
        momentum = torch.zeros_like(start[name]).double()
        for step in range(STEPS):
            momentum = 0.95 * momentum + 0.05 * gradients(network, step)[name].double()
        kept = found.state_tensors()[f"momentum_buffer.{name}"]
        torch.testing.assert_close(kept.double(), momentum, rtol=1e-5, atol=1e-7)


def treated(found: Optimizers) -> dict[str, set[str]]:
    return {
        type(part).__name__: {found._names[p] for group in part.param_groups for p in group["params"]}
        for part in found.parts
    }


def test_which_parameter_goes_to_which_optimiser() -> None:
    matrices = {"layers.0.weight", "layers.1.weight"}
    network = small()
    everything = {name for name, _ in network.named_parameters()}
    assert treated(optimizers.build(network, TrainParams())) == {"AdamW": everything}
    assert treated(optimizers.build(network, TrainParams(optimizer="muon"))) == {
        "Muon": matrices, "AdamW": everything - matrices,
    }  # fmt: skip
    back = (GroupParams(match="layers.1.*", optimizer="adamw"), GroupParams(match="lm_head.*", optimizer="muon"))
    assert treated(optimizers.build(network, TrainParams(optimizer="muon", groups=back)))["Muon"] == {
        "layers.0.weight", "lm_head.weight",
    }  # fmt: skip
    network.lm_head.requires_grad_(False)
    assert "lm_head.weight" not in treated(optimizers.build(network, TrainParams()))["AdamW"]


def test_a_dflash_drafter_is_all_muon_but_its_norms() -> None:
    network = fresh()
    found = treated(optimizers.build(network, TrainParams(optimizer="muon")))
    assert found["AdamW"] == {name for name, p in network.named_parameters() if p.ndim == 1}
    assert found["Muon"] == {name for name, p in network.named_parameters() if p.ndim == 2}


@pytest.mark.parametrize("head", ["markov", "gated", "rnn"])
def test_heads_and_tables_of_a_dspark_drafter_are_not_hidden_matrices(head: str) -> None:
    network = dspark_network(head)
    found = treated(optimizers.build(network, TrainParams(optimizer="muon")))
    outer = {"confidence_head.proj.weight", "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
    matrices = {name for name, p in network.named_parameters() if p.ndim == 2}
    assert outer < matrices
    assert found["Muon"] == matrices - outer
    back = (GroupParams(match="confidence_head.proj.weight", optimizer="muon"),)
    assert outer & treated(optimizers.build(network, TrainParams(optimizer="muon", groups=back)))["Muon"] == {
        "confidence_head.proj.weight"
    }


def test_groups_that_do_not_fit_are_told_all_at_once() -> None:
    groups = (GroupParams(match="fc.*"), GroupParams(match="norm.*", optimizer="muon"), GroupParams(match="x"))
    with pytest.raises(WrongGroups) as caught:
        optimizers.build(small(), TrainParams(groups=groups))
    message = str(caught.value)
    for part in ("groups.0.match: 'fc.*'", "groups.2.match: 'x'", "norm.weight: Muon trains matrices", "layers.0.bias"):
        assert part in message


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_state_named_by_parameter_continues_bit_for_bit(optimizer: Any) -> None:
    params = TrainParams(optimizer=optimizer, weight_decay=0.1)
    whole, cut = small(), small()
    train(whole, optimizers.build(whole, params), range(STEPS))
    first = optimizers.build(cut, params)
    train(cut, first, range(3))
    state = {name: value.clone() for name, value in first.state_tensors().items()}
    slots = {"adamw": {"exp_avg", "exp_avg_sq", "step"}, "muon": {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}}
    assert {name.partition(".")[0] for name in state} == slots[optimizer]
    second = optimizers.build(cut, params)
    second.load_state_tensors(state)
    train(cut, second, range(3, STEPS))
    for name, parameter in whole.named_parameters():
        assert torch.equal(cut.get_parameter(name), parameter), name
    with pytest.raises(ValueError, match=r"layers\.9\.weight"):
        second.load_state_tensors({"exp_avg.layers.9.weight": torch.zeros(2)})
