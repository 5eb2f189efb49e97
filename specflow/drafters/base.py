"""What decoding needs from a drafter, whatever its method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor


class Proposer(Protocol):
    """Proposes a chain for one request. State is the drafter's own KV of committed positions.

    Shapes: T committed rows of one target pass, K captured layers, H hidden size, m proposals, V vocabulary.
    """

    @property
    def num_proposals(self) -> int:
        """m, proposals per round."""
        ...

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs ``extend`` expects, in this order."""
        ...

    def fork(self) -> Self:
        """A proposer with the same weights for another request, without any state; ``reset`` it before use."""
        ...

    def reset(self, capacity: int) -> None:
        """Forget the request; reserve room for ``capacity`` committed positions."""
        ...

    def extend(self, features_TKH: Tensor) -> None:
        """Append the features of rows the target has just committed."""
        ...

    def propose(self, anchor: int) -> Tensor:
        """``[m]`` int64 proposals after ``anchor``, which sits at the next position. The most probable ones."""
        ...


class Draw(Protocol):
    """Draws one proposal; the engine gives it, with the request's draft temperature, filters and random numbers."""

    def __call__(self, logits_V: Tensor) -> tuple[int, Tensor]:
        """The next proposal, and ``[V]`` the distribution it was drawn from.

        Called once per proposal, in order, with logits of the target's whole vocabulary: minus infinity for tokens
        that the drafter cannot propose.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A chain, and how it came about."""

    tokens_m: Tensor
    """int64."""
    q_mV: Tensor | None = None
    """Row i: the distribution that token i was drawn from, given the tokens before it. None: nothing was drawn."""


@runtime_checkable
class Samples(Protocol):
    """A proposer whose proposals can be drawn."""

    def sample(self, anchor: int, draw: Draw) -> Proposal:
        """As ``propose``, every token by ``draw``; the q it returns goes into the proposal unchanged."""
        ...


@runtime_checkable
class Confident(Protocol):
    """A proposer that says how sure it is of its proposals; it need not be asked, and some drafters are not."""

    @property
    def confidence_m(self) -> Tensor | None:
        """``[m]`` fp32 raw logits (before any temperature and the sigmoid) of the last proposal.

        Logit i is of: proposal i is accepted, given that all before it are. None where the drafter has no confidence.
        """
        ...


def confidence_of(proposer: Proposer) -> Tensor | None:
    """Raw confidence logits ``[m]`` of what ``proposer`` proposed last; none where it has none."""
    return proposer.confidence_m if isinstance(proposer, Confident) else None


def draw_rows(logits_mV: Tensor, draw: Draw) -> Proposal:
    """A chain whose rows do not depend on the tokens drawn before them."""
    drawn = [draw(row_V) for row_V in logits_mV]
    return Proposal(tokens_m=torch.tensor([token for token, _ in drawn]), q_mV=torch.stack([q for _, q in drawn]))
