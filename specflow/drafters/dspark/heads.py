"""The sequential heads (METHODS 6): the token chosen before a row adds to the row's logits ``code @ markov_w2.T``.

Parameter names and shapes are the serving engine's. Legend: N blocks, M proposals of a block, H hidden size, r rank,
V vocabulary, R rows of the training softmax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from specflow.drafters.dspark.geometry import DSparkGeometry


class SequentialHead(nn.Module, ABC):
    """Both tables have a row for every token of the target's vocabulary.

    ``step`` and ``initial_state`` leave the tables alone, so that decoding may hold them in another form.
    """

    def __init__(self, geometry: DSparkGeometry) -> None:
        super().__init__()
        self.rank = geometry.head_rank
        self.markov_w1 = nn.Embedding(geometry.vocab_size, self.rank)
        # A table of tokens, not a map between hidden states: optimisers treat it as one.
        self.markov_w2 = nn.Embedding(geometry.vocab_size, self.rank)

    def initial_state(self, hidden_NH: Tensor) -> Tensor:
        """What ``step`` gets at the first row of each block."""
        return hidden_NH.new_zeros(hidden_NH.shape[0], self.rank)

    @abstractmethod
    def step(self, hidden_NH: Tensor, embedded_Nr: Tensor, state_Nr: Tensor) -> tuple[Tensor, Tensor]:
        """Codes ``[N, r]`` of one row of each block, and the state after it.

        ``embedded_Nr``: rows of ``markov_w1`` of the tokens before.
        """

    def codes(self, hidden_NMH: Tensor, embedded_NMr: Tensor) -> Tensor:
        """``[N, M, r]`` of all rows, where the tokens before each are known."""
        state, found = self.initial_state(hidden_NMH[:, 0]), []
        for hidden_NH, embedded_Nr in zip(hidden_NMH.unbind(1), embedded_NMr.unbind(1), strict=True):
            code, state = self.step(hidden_NH, embedded_Nr, state)
            found.append(code)
        return torch.stack(found, dim=1)


class MarkovHead(SequentialHead):
    """The token before, and nothing else."""

    def step(self, hidden_NH: Tensor, embedded_Nr: Tensor, state_Nr: Tensor) -> tuple[Tensor, Tensor]:
        return embedded_Nr, state_Nr

    def codes(self, hidden_NMH: Tensor, embedded_NMr: Tensor) -> Tensor:
        return embedded_NMr


class GatedHead(SequentialHead):
    """The token before, every component weighed by what the row and the token say."""

    def __init__(self, geometry: DSparkGeometry) -> None:
        super().__init__(geometry)
        self.gate_proj = nn.Linear(geometry.hidden_size + self.rank, self.rank)

    def step(self, hidden_NH: Tensor, embedded_Nr: Tensor, state_Nr: Tensor) -> tuple[Tensor, Tensor]:
        return self._gated(hidden_NH, embedded_Nr), state_Nr

    def codes(self, hidden_NMH: Tensor, embedded_NMr: Tensor) -> Tensor:
        return self._gated(hidden_NMH, embedded_NMr)

    def _gated(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        gate: Tensor = self.gate_proj(torch.cat((hidden, embedded), dim=-1))
        return gate.sigmoid() * embedded


class RNNHead(SequentialHead):
    """A gated state that has seen every token of the block so far."""

    def __init__(self, geometry: DSparkGeometry) -> None:
        super().__init__(geometry)
        self.joint_proj = nn.Linear(2 * self.rank + geometry.hidden_size, 3 * self.rank)

    def step(self, hidden_NH: Tensor, embedded_Nr: Tensor, state_Nr: Tensor) -> tuple[Tensor, Tensor]:
        joint: Tensor = self.joint_proj(torch.cat((state_Nr, embedded_Nr, hidden_NH), dim=-1))
        gate, candidate, out = joint.chunk(3, dim=-1)
        keep = gate.sigmoid()
        state = keep * state_Nr + (1 - keep) * candidate.tanh()
        return out.tanh(), state


class ConfidenceHead(nn.Module):
    """Raw logit of "accepted, given that all before are": linear in the row and the token before it, in fp32."""

    def __init__(self, geometry: DSparkGeometry) -> None:
        super().__init__()
        self.proj = nn.Linear(geometry.hidden_size + geometry.head_rank, 1)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """``[..., H]`` and ``[..., r]`` -> ``[...]``."""
        with torch.autocast(hidden.device.type, enabled=False):
            features = torch.cat((hidden, embedded), dim=-1)
            raw: Tensor = self.proj(features.to(torch.promote_types(features.dtype, torch.float32)))
        return raw.squeeze(-1)


def make_head(geometry: DSparkGeometry) -> SequentialHead:
    kinds: dict[str, type[SequentialHead]] = {"markov": MarkovHead, "gated": GatedHead, "rnn": RNNHead}
    return kinds[geometry.head](geometry)


def initialise_heads(head: SequentialHead, confidence: ConfidenceHead | None, *, seed: int) -> None:
    """No correction at birth, and a confidence of one half.

    ``markov_w1`` has rows of length one, ``markov_w2`` is zero: it has a gradient from the first step, and a token
    outside the training softmax, whose row gets none, keeps the backbone's own logit. The same seed gives the same
    weights on every platform.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name == "markov_w1.weight":
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * head.rank**-0.5)
            elif name == "markov_w2.weight" or parameter.ndim == 1:
                parameter.zero_()
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        if confidence is not None:
            for parameter in confidence.parameters():
                parameter.zero_()
