"""Documents become the tensors of one forward pass: context rows, and the places where chains start.

Row t pairs the target's features at t with the token at t + 1 and predicts the token at t + 2. A chain that starts
there takes steps of its own: at depth i it reads the token at t + 1 + i and predicts the one at t + 2 + i.

Legend: N starts, S context rows of all documents, X tokens of all documents, P predicted tokens, L depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.dflash.attention import Span
from specflow.drafters.training import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    depths: int
    starts_N: Tensor
    """Context rows where chains start, increasing."""
    visible_N: Tensor
    """Context rows of its document that a start sees, itself included."""
    positions_S: Tensor
    """Rotary position of each context row: its place in the document."""
    token_ids_X: Tensor
    """0 behind the end of a document."""
    tokens_S: Tensor
    """Where in ``token_ids_X`` the token of each context row is; i further is that of depth i."""
    spans: tuple[Span, ...]
    """Context rows and starts of each document."""
    features: tuple[Tensor, ...]
    """``[rows, K, H]`` of each document as stored, up to its last start."""

    @property
    def features_SKH(self) -> Tensor:
        """Fp32, made anew at every access: batches that wait for their turn hold no copy."""
        first = self.features[0]
        out = first.new_empty((self.positions_S.numel(), *first.shape[1:]), dtype=torch.float32)
        for rows, span in zip(self.features, self.spans, strict=True):
            out[slice(*span.context)] = rows
        return out


@dataclass(slots=True, kw_only=True)
class Predicted:
    """Tokens that the loss judges, each predicted by as many starts as there are depths."""

    labels_P: Tensor
    starts_PL: Tensor
    """Which start predicts token p at depth i; -1 where that start would lie before the document."""
    teacher_PH: Tensor
    """The target's last hidden state at the row that predicts the token, as stored."""
    documents: tuple[int, ...]
    """How many of the tokens are of each document, in order."""
    kept_P: Tensor | None = field(default=None)
    """Which of them the draft vocabulary can express; filled when first asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    rollouts: Rollouts
    predicted: Predicted


def starts_before(source: Source, starts_n: Tensor, *, depths: int) -> Rollouts:
    """Chains of one document from given rows."""
    return _joined([(source, starts_n)], depths=depths)


def starts_at_anchors(source: Source, *, depths: int) -> Rollouts:
    """Chains whose first row reads an anchor; ``ValueError`` where none has a row before it."""
    starts_n = source.anchors[source.anchors >= 1] - 1
    if not starts_n.numel():
        raise ValueError("expected a source with at least one anchor that has a row before it, found none")
    return starts_before(source, starts_n, depths=depths)


def assemble(sources: Sequence[Source], *, depths: int, reference_mask: bool = False) -> Batch | None:
    """Chains from every row that predicts a supervised token at some depth; none if there is no such token.

    ``reference_mask``: a token counts if the one two before it is supervised, instead of itself. Raises
    ``ValueError`` for a source without the target's last hidden states.
    """
    parts, labels, starts, teachers, first = [], [], [], [], 0
    for source in sources:
        wanted_p = predicted_places(source, reference_mask=reference_mask)
        if not wanted_p.numel():
            continue
        assert source.last_hidden_TH is not None
        rows_pL = wanted_p.unsqueeze(1) - 2 - torch.arange(depths)
        starts_n = torch.unique(rows_pL[rows_pL >= 0])
        starts.append(torch.where(rows_pL >= 0, first + torch.searchsorted(starts_n, rows_pL), -1))
        labels.append(source.token_ids_T[wanted_p])
        teachers.append(source.last_hidden_TH[wanted_p - 1])
        parts.append((source, starts_n))
        first += starts_n.numel()
    if not parts:
        return None
    predicted = Predicted(
        labels_P=torch.cat(labels),
        starts_PL=torch.cat(starts),
        teacher_PH=torch.cat(teachers),
        documents=tuple(part.numel() for part in labels),
    )
    return Batch(rollouts=_joined(parts, depths=depths), predicted=predicted)


def predicted_places(source: Source, *, reference_mask: bool = False) -> Tensor:
    """Places of the tokens that count: with a start before them and a teacher's row that is stored."""
    if source.last_hidden_TH is None:
        raise ValueError("expected the target's last hidden states beside the features, found none")
    stored = min(source.features_TKH.shape[0], source.last_hidden_TH.shape[0])
    end = min(source.token_ids_T.numel(), stored + 1)
    counted = source.supervised_T[: max(0, end - 2)] if reference_mask else source.supervised_T[2:end]
    return counted.nonzero().squeeze(1) + 2


def _joined(parts: Sequence[tuple[Source, Tensor]], *, depths: int) -> Rollouts:
    spans, features, tokens, positions, places, starts = [], [], [], [], [], []
    row = start = token = 0
    for source, starts_n in parts:
        rows = int(starts_n[-1]) + 1
        read = source.token_ids_T[1 : rows + depths]
        spans.append(Span(context=(row, row + rows), blocks=(start, start + starts_n.numel())))
        features.append(source.features_TKH[:rows])
        tokens.append(F.pad(read, (0, rows + depths - 1 - read.numel())))
        positions.append(torch.arange(rows))
        places.append(token + torch.arange(rows))
        starts.append(row + starts_n)
        row, start, token = row + rows, start + starts_n.numel(), token + rows + depths - 1
    starts_N, positions_S = torch.cat(starts), torch.cat(positions)
    return Rollouts(
        depths=depths,
        starts_N=starts_N,
        visible_N=positions_S[starts_N] + 1,
        positions_S=positions_S,
        token_ids_X=torch.cat(tokens),
        tokens_S=torch.cat(places),
        spans=tuple(spans),
        features=tuple(features),
    )
