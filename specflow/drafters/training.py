"""What a drafter method brings to training: its loss as sums, and how it is walked.

Legend: T tokens, K layers of the drafter, H hidden size, V vocabulary, R rows of the training softmax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One document and where it is trained in this epoch."""

    token_ids_T: Tensor
    supervised_T: Tensor
    features_TKH: Tensor
    anchors: Tensor
    """Increasing positions; may be empty. A method that trains at every position leaves them unread."""
    last_hidden_TH: Tensor | None = None
    """The target's hidden states after its final norm, where the method needs them."""
    key: tuple[int, int, int] = (0, 0, 0)
    """(seed, epoch, document): whatever else a method draws is a pure function of it (``anchors.raw_stream``)."""


class Term(NamedTuple):
    """One part of the loss, as sums. The ratio is formed once, over everything that belongs to an optimiser step."""

    name: str
    numerator: Tensor
    """Scalar with gradient."""
    denominator: Tensor
    """Scalar without gradient."""


class Progress(NamedTuple):
    step: int
    """0-based."""
    steps: int

    @property
    def share(self) -> float:
        """0 at the first step, 1 at the last: for warm-ups of a term's weight."""
        return self.step / max(1, self.steps - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a batch holds."""

    anchors: int
    labels: int
    context_rows: int


class Correction(NamedTuple):
    """What a method adds to the head's logits: ``code @ table.T``."""

    code_Mr: Tensor
    table_Vr: Tensor
    """A row for every token of the whole vocabulary."""


class Ends(Protocol):
    """The target's frozen embedding and head."""

    @property
    def head_RH(self) -> Tensor:
        """The head's rows of the training softmax, fp32."""
        ...

    @property
    def softmax_tokens(self) -> Tensor:
        """``[R]`` increasing token ids: those of the rows of ``head_RH``."""
        ...

    @property
    def precision(self) -> str: ...
    def embed(self, ids: Tensor) -> Tensor: ...
    def head(self, hidden: Tensor) -> Tensor: ...
    def head_rows(self, ids: Tensor | None) -> Tensor:
        """``[n, H]`` fp32: the head's rows of these tokens, none: of all. Without gradient."""
        ...

    def rows(self, labels: Tensor, valid: Tensor) -> Tensor:
        """Labels as rows of ``head_RH``."""
        ...

    def agrees(self, hidden_MH: Tensor, labels_M: Tensor, correction: Correction | None = None) -> Tensor:
        """``[M]`` bool: the choice among the whole vocabulary, by the corrected logits, is the label."""
        ...


class Text(Protocol):
    """A document without anchors, as the walk sees it."""

    @property
    def index(self) -> int: ...
    @property
    def token_ids_T(self) -> Tensor: ...
    @property
    def supervised_T(self) -> Tensor: ...
    @property
    def features_TKH(self) -> Tensor: ...
    @property
    def last_hidden_TH(self) -> Tensor | None:
        """Where the method needs them."""
        ...


class Walk(Protocol):
    """Rounds over given texts, many side by side."""

    def accepted(self, places: Sequence[tuple[int, int]]) -> list[int]:
        """For ``(text, anchor)`` each: how many proposals after the anchor are the text, up to the first other one."""
        ...


@runtime_checkable
class ComparedWalk(Walk, Protocol):
    """A walk that can say more than how far it came."""

    def alternatives(self) -> Mapping[str, Walk]:
        """By name: the same texts under other rules of choosing, each walked for itself, its tau reported beside."""
        ...

    def figures(self) -> Mapping[str, Any]:
        """JSON values by name, of the rounds that this walk was asked for."""
        ...


class Learner(ABC):
    """A network together with its loss. ``weights``, ``prepare`` and ``objective`` are all that a method must write.

    A batch is whatever ``prepare`` returns; the trainer hands it back untouched. ``objective`` is called with the
    parameters it was built with, possibly as one of many ranks: it may use nothing but its batch and the network.
    """

    network: nn.Module
    anchors_per_pass: int | None = None
    """Anchors of one forward pass at most, to bound its memory; none: any number."""

    @abstractmethod
    def weights(self, progress: Progress) -> Mapping[str, float]:
        """Every term of the loss by name, with its weight: the loss is the sum of weight times ratio."""

    @abstractmethod
    def prepare(self, sources: Sequence[Source]) -> Any | None:
        """The tensors of one forward pass; none if nothing in ``sources`` can be trained on."""

    @abstractmethod
    def counts(self, batch: Any) -> Counts: ...

    @abstractmethod
    def objective(self, batch: Any, progress: Progress) -> Sequence[Term]:
        """The sums of a batch, one term per name of ``weights``."""

    def denominators(self, batch: Any, progress: Progress) -> Mapping[str, float]:
        """The denominators that ``objective`` will return, before any gradient.

        By default a forward pass without gradient. Where labels alone decide them, say so: it saves that pass.
        """
        with torch.no_grad():
            return {term.name: float(term.denominator) for term in self.objective(batch, progress)}

    def walk(self, texts: Sequence[Text]) -> Walk | None:
        """Rounds side by side; none: texts are walked with the method's proposer, one after the other."""
        return None

    def pass_bytes(self, *, anchors: int, context_rows: int, softmax_rows: int) -> int | None:
        """What one pass holds at its most, beside weights, optimiser and the target's tables; none: not known."""
        return None

    def teacher_forced(self, sources: Sequence[Source]) -> tuple[int, int]:
        """``(right, judged)`` proposals at the anchors, given the right text before them; ``(0, 0)``: not known."""
        return 0, 0
