"""What decoding needs from a drafter, whatever its method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor


class Text(Protocol):
    """A stored text with its features."""

    @property
    def token_ids_T(self) -> Tensor: ...
    @property
    def features_TKH(self) -> Tensor: ...
    @property
    def last_hidden_TH(self) -> Tensor | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Rows that the target has just committed, as a drafter may read them."""

    features_TKH: Tensor
    """Outputs of the captured layers, in layer order."""
    next_ids_T: Tensor
    """int64: the token after each row. The last one is the next anchor, which the target has not executed."""
    last_hidden_TH: Tensor | None = None
    """After the target's final norm, what its head reads; none where the method did not ask for it (``Needs``)."""

    @classmethod
    def of_text(cls, text: Text, start: int, stop: int) -> Committed:
        """Rows ``start .. stop`` of a known text, which goes on behind them."""
        last_TH = text.last_hidden_TH
        return cls(
            features_TKH=text.features_TKH[start:stop],
            next_ids_T=text.token_ids_T[start + 1 : stop + 1],
            last_hidden_TH=None if last_TH is None else last_TH[start:stop],
        )


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
        """Target layers whose outputs ``extend`` expects, in this order; may be empty."""
        ...

    def fork(self) -> Self:
        """A proposer with the same weights for another request, without any state; ``reset`` it before use."""
        ...

    def reset(self, capacity: int) -> None:
        """Forget the request; reserve room for ``capacity`` committed positions."""
        ...

    def extend(self, rows: Committed) -> None:
        """Append rows the target has just committed: each position once, in order."""
        ...

    def propose(self, anchor: int) -> Tensor:
        """``[m]`` int64 proposals after ``anchor``, which sits at the next position. The most probable ones."""
        ...


class Inspectable(Proposer, Protocol):
    """What ``verify`` compares between training, export and decoding. V' is the drafter's own vocabulary."""

    def hidden(self, anchor: int, text_m: Tensor) -> Tensor:
        """``[m, H]`` of the proposals' rows after the final norm; leaves the committed state as it was.

        ``text_m``: int64, the text after ``anchor``. Rows that depend on earlier proposals are given these instead.
        """
        ...

    def score(self, hidden_mH: Tensor) -> Tensor:
        """``[m, V']`` logits of these rows, before anything that depends on the proposals before them."""
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
class LooksAhead(Protocol):
    """A proposer whose pass before the first choice can be shared by several requests; optional."""

    @classmethod
    def look_ahead(cls, proposers: Sequence[Self], anchors: Sequence[int]) -> None:
        """Compute together what each of ``proposers``, forks of one, reads to propose after its anchor.

        What they then propose, draw or expand is as without, up to the rounding of a larger batch.
        """
        ...


@runtime_checkable
class Expands(Protocol):
    """A proposer that can draft trees: nodes are added below any node, a few at a time. V: the target's vocabulary.

    Drafted nodes are not committed; ``extend`` and ``begin_tree`` forget them.
    """

    def begin_tree(self, anchor: int) -> Tensor:
        """``[V]`` float32 log q of the token after ``anchor``, which is node 0.

        Minus infinity for tokens that the drafter cannot propose.
        """
        ...

    def expand(self, tokens_b: Tensor, parents_b: Tensor) -> Tensor:
        """Append b nodes; ``[b, V]`` log q of the token after each.

        ``parents_b``: their parents' numbers, 0 the anchor, then 1, 2, ... in the order in which nodes were appended.
        A node sees the committed text, the anchor, its ancestors and itself.
        """
        ...


@runtime_checkable
class Confident(Protocol):
    """A proposer that says how sure it is of its proposals; it need not be asked, and some drafters are not."""

    @property
    def confidence_m(self) -> Tensor | None:
        """``[m]`` fp32 raw logits (before any temperature and the sigmoid) of the last proposal.

        Logit i is of: proposal i is accepted, given that all before it are. It may depend on the proposals before i,
        never on proposal i itself or a later one: a scheduler decides by it whether i is verified, and sampled outputs
        would no longer have the target's distribution. None where the drafter has no confidence.
        """
        ...


def confidence_of(proposer: Proposer) -> Tensor | None:
    """Raw confidence logits ``[m]`` of what ``proposer`` proposed last; none where it has none."""
    return proposer.confidence_m if isinstance(proposer, Confident) else None


def draw_rows(logits_mV: Tensor, draw: Draw) -> Proposal:
    """A chain whose rows do not depend on the tokens drawn before them."""
    drawn = [draw(row_V) for row_V in logits_mV]
    return Proposal(tokens_m=torch.tensor([token for token, _ in drawn]), q_mV=torch.stack([q for _, q in drawn]))
