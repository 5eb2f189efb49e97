"""What a store holds, in figures: norms and outliers of every layer, and which documents there are.

Legend: N rows of a block, V kinds of vectors (the layers, then ``last_hidden``), H hidden size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from specflow.features.reader import FeatureReader

BLOCK_ROWS = 512
"""Rows in memory at a time, whatever the length of documents and the size of the store."""
OUTLIER = 6.0
"""A channel is an outlier where its root mean square is this many times that of the median channel."""
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFigures:
    """One kind of vector over all stored rows."""

    name: str
    """``layer 3`` or ``last_hidden``."""
    mean_norm: float
    rms: float
    """Root mean square of the values."""
    largest: float
    """Largest absolute value."""
    largest_at: str
    """``document ID, row T, channel C``."""
    outlier_channels: int
    outliers: tuple[tuple[int, float], ...]
    """The strongest: channel, and how many times the median channel."""
    zero_share: float
    not_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    documents: int
    tokens: int
    """Of the documents."""
    rows: int
    """Stored."""
    supervised: int
    coverage: tuple[dict[str, Any], ...]
    """``split, kind, documents, tokens, supervised, greedy`` (documents), training first."""
    vectors: tuple[VectorFigures, ...]

    @property
    def supervised_share(self) -> float:
        return self.supervised / max(1, self.tokens)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "supervised_share": self.supervised_share}


def figures_of(reader: FeatureReader, *, on_document: Callable[[], None] = lambda: None) -> StoreFigures:
    """Read every document once. Values that are not finite are counted and left out of the sums."""
    names = [*(f"layer {k}" for k in reader.contract.layer_ids), "last_hidden"]
    sums = _Sums(len(names), reader.contract.hidden_size)
    groups: dict[tuple[str, str], Counter[str]] = {}
    for position in range(len(reader)):
        document = reader.document(position)
        tokens, supervised = document.token_ids_T.numel(), int(document.supervised_T.sum())
        group = groups.setdefault((document.split, document.kind), Counter())
        group.update(documents=1, tokens=tokens, supervised=supervised, greedy=int(document.greedy))
        for start in range(0, document.last_hidden_TH.shape[0], BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            block = torch.cat([document.features_TKH[rows], document.last_hidden_TH[rows, None]], dim=1)
            sums.add(block.float(), document=document.id or str(document.index), start=start)
        on_document()
    order = sorted(groups, key=lambda g: (g[0] != "train", g))
    total = sum(groups.values(), Counter[str]())
    return StoreFigures(
        documents=len(reader),
        tokens=total["tokens"],
        rows=sums.rows,
        supervised=total["supervised"],
        coverage=tuple({"split": s, "kind": k, **_counts(groups[s, k])} for s, k in order),
        vectors=tuple(sums.figures(i, name) for i, name in enumerate(names)),
    )


def _counts(group: Counter[str]) -> dict[str, int]:
    return {name: group[name] for name in ("documents", "tokens", "supervised", "greedy")}


class _Sums:
    """Running sums; fp64, so that the order of the rows does not show."""

    def __init__(self, vectors: int, hidden: int) -> None:
        self.rows = 0
        self._norms_V = torch.zeros(vectors, dtype=torch.float64)
        self._squares_VH = torch.zeros(vectors, hidden, dtype=torch.float64)
        self._zeros_V = torch.zeros(vectors, dtype=torch.int64)
        self._broken_V = torch.zeros(vectors, dtype=torch.int64)
        self._largest = [(0.0, "")] * vectors

    def add(self, block_NVH: Tensor, *, document: str, start: int) -> None:
        finite = block_NVH.isfinite()
        self._broken_V += (~finite).sum(dim=(0, 2))
        self._zeros_V += (block_NVH == 0).sum(dim=(0, 2))
        block_NVH = torch.where(finite, block_NVH, 0.0)
        self._norms_V += block_NVH.norm(dim=-1).double().sum(dim=0)
        self._squares_VH += block_NVH.square().sum(dim=0).double()
        self.rows += block_NVH.shape[0]
        for v in range(block_NVH.shape[1]):
            values_NH = block_NVH[:, v].abs()
            best = int(values_NH.argmax())
            row, channel = divmod(best, values_NH.shape[1])
            found = float(values_NH[row, channel])
            if found > self._largest[v][0]:
                self._largest[v] = (found, f"document {document}, row {start + row}, channel {channel}")

    def figures(self, v: int, name: str) -> VectorFigures:
        rows, hidden = max(1, self.rows), self._squares_VH.shape[1]
        rms_H = (self._squares_VH[v] / rows).sqrt()
        ratio_H = rms_H / rms_H.median().clamp_min(1e-30)
        order = ratio_H.argsort(descending=True)[:SHOWN].tolist()
        return VectorFigures(
            name=name,
            mean_norm=float(self._norms_V[v]) / rows,
            rms=float((self._squares_VH[v].sum() / (rows * hidden)).sqrt()),
            largest=self._largest[v][0],
            largest_at=self._largest[v][1],
            outlier_channels=int((ratio_H >= OUTLIER).sum()),
            outliers=tuple((int(c), float(ratio_H[c])) for c in order if ratio_H[c] >= OUTLIER),
            zero_share=float(self._zeros_V[v]) / (rows * hidden),
            not_finite=int(self._broken_V[v]),
        )
