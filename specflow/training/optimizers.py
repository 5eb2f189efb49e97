"""AdamW, or Muon for the matrices of hidden layers with AdamW for everything else, as one optimiser.

Muon orthogonalises the momentum of a matrix, which has a meaning for maps between hidden states only: embeddings and
heads are tables of tokens, other heads give a number or two, norms and biases are vectors. Those stay with AdamW.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from specflow.config.drafter import TrainParams
from specflow.config.parameter_groups import GroupParams
from specflow.training.tensors import placed_like, whole

TOKEN_TABLES = ("embed_tokens", "embedding", "lm_head", "head", "predecessor_codebook", "successor_codebook")
"""Parts of a parameter's name that say that its rows belong to tokens."""
HEADS = ("confidence_head",)
"""Parts of a parameter's name that say that it maps to what the drafter answers, not to another hidden state."""
RATE = "rate"
"""Key of a parameter group: its multiple of the learning rate."""

Kind = Literal["adamw", "muon"]


class WrongGroups(ValueError):
    """``groups`` do not fit the network; the message says everything that does not."""


@dataclass(frozen=True, slots=True)
class _Treatment:
    kind: Kind
    weight_decay: float
    rate: float


class Optimizers:
    """PyTorch optimisers over disjoint parameters of one network, with state named by parameter."""

    def __init__(self, named: Mapping[str, nn.Parameter], parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}

    def set_rate(self, rate: float) -> None:
        """Every group gets its multiple of ``rate``."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate * group[RATE]

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def state_tensors(self) -> dict[str, Tensor]:
        """``<slot>.<parameter>``, whole: the moments and step of AdamW, the momentum of Muon."""
        return {
            f"{slot}.{self._names[parameter]}": whole(value)
            for part in self.parts
            for parameter, slots in part.state.items()
            for slot, value in slots.items()
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of ``state_tensors``, replacing all state; raises ``ValueError`` naming tensors of no parameter."""
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            slot, _, name = key.partition(".")
            found.setdefault(name, {})[slot] = value
        foreign = sorted(set(found) - set(self._names.values()))
        if foreign:
            raise ValueError(f"optimiser state of parameters that the network lacks: {', '.join(foreign)}")
        for part, parameter in self._owned():
            part.state.pop(parameter, None)
            slots = found.get(self._names[parameter])
            if slots:
                part.state[parameter] = {slot: _placed(value, parameter) for slot, value in slots.items()}

    def _owned(self) -> Iterator[tuple[torch.optim.Optimizer, nn.Parameter]]:
        for part in self.parts:
            for group in part.param_groups:
                yield from ((part, parameter) for parameter in group["params"])


def build(network: nn.Module, params: TrainParams) -> Optimizers:
    """The optimisers that ``params`` asks for; parameters that need no gradient are left out.

    Raises ``WrongGroups`` naming every pattern of ``params.groups`` that matches nothing, and every parameter that a
    group gives to Muon although it is no matrix.
    """
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    outer = _token_tables(network) | {name for name in named if set(name.split(".")) & set(HEADS)}
    groups: dict[_Treatment, list[nn.Parameter]] = {}
    wrong = [
        f"groups.{i}.match: {group.match!r} matches no parameter"
        for i, group in enumerate(params.groups)
        if not fnmatch.filter(named, group.match)
    ]
    for name, parameter in named.items():
        treatment = _treatment(name, parameter, params, outer=name in outer)
        if treatment.kind == "muon" and parameter.ndim != 2:
            wrong.append(f"{name}: Muon trains matrices, and this one has {parameter.ndim} dimensions")
        groups.setdefault(treatment, []).append(parameter)
    if wrong:
        raise WrongGroups("; ".join(wrong) + f"; the parameters are {', '.join(named)}")
    return Optimizers(named, list(_parts(groups, params)))


def _parts(groups: Mapping[_Treatment, list[nn.Parameter]], params: TrainParams) -> Iterator[torch.optim.Optimizer]:
    adamw = _torch_groups(groups, "adamw")
    if adamw:
        yield torch.optim.AdamW(adamw, lr=params.learning_rate, betas=params.betas, eps=params.epsilon, fused=True)
    muon = _torch_groups(groups, "muon")
    if muon:
        yield torch.optim.Muon(
            muon, lr=params.learning_rate, momentum=params.muon_momentum, adjust_lr_fn=params.muon_scale
        )


def _torch_groups(groups: Mapping[_Treatment, list[nn.Parameter]], kind: Kind) -> list[dict[str, object]]:
    return [
        {"params": parameters, "weight_decay": t.weight_decay, RATE: t.rate}
        for t, parameters in groups.items()
        if t.kind == kind
    ]


def _treatment(name: str, parameter: nn.Parameter, params: TrainParams, *, outer: bool) -> _Treatment:
    group = next((g for g in params.groups if fnmatch.fnmatchcase(name, g.match)), GroupParams(match="*"))
    hidden_matrix = parameter.ndim == 2 and not outer
    asked: Kind = params.optimizer if hidden_matrix else "adamw"
    decay = params.weight_decay if parameter.ndim > 1 else 0.0
    return _Treatment(
        kind=group.optimizer or asked,
        weight_decay=decay if group.weight_decay is None else group.weight_decay,
        rate=group.rate,
    )


def _token_tables(network: nn.Module) -> set[str]:
    """Names of embeddings and heads: by their module's type, or by their name."""
    by_type = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in network.named_modules()
        if isinstance(module, nn.Embedding)
        for name, _ in module.named_parameters(recurse=False)
    }
    return by_type | {name for name, _ in network.named_parameters() if set(name.split(".")) & set(TOKEN_TABLES)}


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """State as its optimiser keeps it: moments beside the parameter, AdamW's step a scalar of its own."""
    if value.ndim:
        return placed_like(value, parameter)
    return value.detach().to(parameter.device, copy=True)
