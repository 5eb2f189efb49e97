"""Checks that captured features are what the contract says, on sampled documents.

A sampled document is computed again alone and compared: with what was captured in a batch (features
of another request, or shifted by a row, differ), and with the states next to each declared layer,
what the first layer reads and what the final norm reads included (a layer early or late matches a
neighbour better). The head must choose on ``last_hidden`` what it chooses on the document alone, and
the tokens that the target chose when it answered (METHODS 9.4). What is wrong is said by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specflow.features.agreement import LEAST_AGREEMENT, agreement
from specflow.features.contract import FeatureContract
from specflow.features.diagnosis import Reference, explain, layer_name, row_errors
from specflow.features.document import Document
from specflow.features.reader import FeatureReader
from specflow.targets.target import Target

TOLERANCE = {"bf16": 0.15}
DEFAULT_TOLERANCE = 0.02
"""Largest relative difference of a row, in norm. Rounding to bfloat16 alone gives 0.002."""
HEAD_ROWS = 128
"""Rows of a document whose choice is compared with the document alone, spread over it."""
HEAD_BLOCK = 64
"""Rows of logits in memory at a time."""


class ProbeFailure(Exception):
    """Captured features are not what they should be."""


class Tokens(Protocol):
    """The part of a tokenised document that is probed."""

    @property
    def id(self) -> str: ...
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def supervised(self) -> Sequence[bool]: ...
    @property
    def greedy(self) -> bool: ...


class Rows(Protocol):
    """Features of a document's first rows, usually of all."""

    @property
    def features_TKH(self) -> Tensor: ...
    @property
    def last_hidden_TH(self) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one document showed. Sums, so that shards add up."""

    error: float
    """Largest relative difference between batch and alone."""
    neighbour_error: float | None
    """Smallest relative difference to a neighbouring layer."""
    rows: int
    """Supervised rows whose next token is known to be greedy."""
    chosen: int
    """Of these, rows where the head chooses exactly that token."""
    near_ties: int
    """Of the others, rows where it chooses another one by a hair."""
    head_rows: int = 0
    """Rows where the head's choice was compared with the document alone."""
    head_equal: int = 0
    head_near_ties: int = 0


def documents_to_probe(indices: Sequence[int], *, per_shard: int, shard: int) -> list[int]:
    """The documents of a shard that are computed again; the first shard always has one."""
    count = max(per_shard, 1 if shard == 0 else 0)
    return sorted(indices[place] for place in spread(len(indices), count))


def spread(total: int, count: int) -> list[int]:
    """Up to ``count`` of the places 0 to ``total - 1``, evenly."""
    count = min(total, count)
    return [(2 * n + 1) * total // (2 * count) for n in range(count)]


def tolerance_of(precision: str, *, dtype: str = "bfloat16", hidden_size: int = 1) -> float:
    """Largest relative difference of a row that arithmetic and storage explain."""
    computed = TOLERANCE.get(precision, DEFAULT_TOLERANCE)
    if dtype.startswith("float8"):
        return computed + 0.05  # three bits of mantissa: at most 2**-4 of a value, 0.027 in the mean
    if dtype == "int8":
        return computed + math.sqrt(hidden_size / 12) / 127  # half a step of the largest value, in every channel
    return computed


def probe_document(
    target: Target,
    layer_ids: tuple[int, ...],
    document: Tokens,
    captured: Rows,
    *,
    dtype: str = "bfloat16",
    whole: bool = True,
) -> Probe:
    """Raises :class:`ProbeFailure` naming document, layer, both errors and what explains them.

    Without ``whole`` the last rows of a document may be missing.
    """
    ids_T = torch.tensor(list(document.ids))
    near = {k + step for k in layer_ids for step in (-1, 0, 1)}
    states, last_TH = target.residual_states(ids_T, near)
    rows = captured.last_hidden_TH.shape[0]
    if rows > len(ids_T) or (whole and rows < len(ids_T)) or captured.features_TKH.shape[:2] != (rows, len(layer_ids)):
        shapes = f"last_hidden of {rows} rows, features of shape {tuple(captured.features_TKH.shape)}"
        raise ProbeFailure(
            f"document {document.id}: {shapes}, for {len(ids_T)} tokens and {len(layer_ids)} layers: rows are missing "
            "or too many"
        )
    last_TH, states = last_TH[:rows], {k: state[:rows] for k, state in states.items()}
    tolerance = tolerance_of(target.precision, dtype=dtype, hidden_size=target.hidden_size)
    failing = _Failing(target, document, layer_ids, captured, tolerance)
    last_error = float(row_errors(captured.last_hidden_TH, last_TH).max())
    if not last_error <= tolerance:
        raise failing.last_hidden(last_TH, last_error)
    errors = [last_error]
    neighbours: list[float] = []
    for position, layer in enumerate(layer_ids):
        ours = captured.features_TKH[:, position]
        by_layer = {k: float(row_errors(ours, states[k]).max()) for k in (layer - 1, layer, layer + 1)}
        own = by_layer.pop(layer)
        if not own <= min(tolerance, *by_layer.values()):
            raise failing.layer(position, states[layer], own, by_layer)
        errors.append(own)
        neighbours += by_layer.values()
    return Probe(
        error=max(errors),
        neighbour_error=min(neighbours, default=None),
        **_choices_of_answer(target, document, captured.last_hidden_TH),
        **_choices_alone(target, captured.last_hidden_TH, last_TH),
    )


def probe_stored(target: Target, contract: FeatureContract, document: Document) -> Probe:
    """The same of a document as it is read from a store of ``contract``."""
    whole = contract.rows == "all"
    return probe_document(target, contract.layer_ids, _Stored(document), document, dtype=contract.dtype, whole=whole)


def probe_store(target: Target, reader: FeatureReader, *, documents: int) -> list[Probe]:
    """Probes of up to ``documents`` documents, spread over the store, as a reader sees them; judged together."""
    places = spread(len(reader), documents)
    probes = [probe_stored(target, reader.contract, reader.document(place)) for place in places]
    judge_alignment(probes)
    return probes


def judge_alignment(probes: Sequence[Probe], *, least: float = LEAST_AGREEMENT) -> None:
    """Raise :class:`ProbeFailure` if the head does not choose what it should often enough."""
    rows = sum(p.head_rows for p in probes)
    good = sum(p.head_equal + p.head_near_ties for p in probes)
    if rows and good < least * rows:
        raise ProbeFailure(
            f"argmax head(last_hidden[t]) is the model's own choice in {good} of {rows} rows ({good / rows:.1%}), "
            f"expected at least {least:.0%}: last_hidden is not what the head reads"
        )
    rows = sum(p.rows for p in probes)
    good = sum(p.chosen + p.near_ties for p in probes)
    if rows and good < least * rows:
        raise ProbeFailure(
            f"argmax head(last_hidden[t]) is the target's own next token in {good} of {rows} rows ({good / rows:.1%}), "
            f"expected at least {least:.0%}: last_hidden is not what the head reads, rows are shifted, or the "
            "answers are not this target's greedy ones"
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored document as a tokenised one."""

    document: Document

    @property
    def id(self) -> str:
        return self.document.id

    @property
    def greedy(self) -> bool:
        return self.document.greedy

    @property
    def ids(self) -> list[int]:
        return [int(i) for i in self.document.token_ids_T]

    @property
    def supervised(self) -> list[bool]:
        return [bool(s) for s in self.document.supervised_T]


@dataclass(frozen=True, slots=True)
class _Failing:
    """Puts a failure into words. Only now is every state of the document computed."""

    target: Target
    document: Tokens
    layer_ids: tuple[int, ...]
    captured: Rows
    tolerance: float

    def last_hidden(self, wanted_TH: Tensor, error: float) -> ProbeFailure:
        stored = self.captured.last_hidden_TH
        why = explain(stored, wanted_TH, tolerance=self.tolerance, final_norm=self.target.final_norm)
        return self._differs("last_hidden", error, why)

    def layer(self, position: int, wanted_TH: Tensor, own: float, neighbours: dict[int, float]) -> ProbeFailure:
        layer, stored = self.layer_ids[position], self.captured.features_TKH[:, position]
        reference = self._reference(stored.shape[0])
        found = [
            reference.nearest(self.captured.features_TKH[:, p], own=k, tolerance=self.tolerance)[0]
            for p, k in enumerate(self.layer_ids)
        ]
        if found != list(self.layer_ids) and sorted(found) == list(self.layer_ids):
            order = ", ".join(map(str, found))
            return self._failure(
                f"the layers are stored in another order: declared {', '.join(map(str, self.layer_ids))}, found {order}"
            )
        nearest, error = reference.nearest(stored, own=layer, tolerance=self.tolerance)
        best = min(neighbours, key=lambda k: neighbours[k])
        if nearest == layer and neighbours[best] < own <= self.tolerance:
            nearest, error = best, neighbours[best]
        if nearest != layer:
            return self._failure(
                f"the features declared as layer {layer} match {layer_name(nearest)} better "
                f"(relative difference {error:.2g} against {own:.2g})"
            )
        return self._differs(f"layer {layer}", own, explain(stored, wanted_TH, tolerance=self.tolerance))

    def _reference(self, rows: int) -> Reference:
        every = range(-1, self.target.num_layers)
        states, _ = self.target.residual_states(torch.tensor(list(self.document.ids)), every)
        return Reference(states={k: state[:rows] for k, state in states.items()})

    def _differs(self, what: str, error: float, why: str) -> ProbeFailure:
        return self._failure(
            f"{what} captured in a batch differs from the document alone by {error:.2g} "
            f"(relative, largest row), at most {self.tolerance:.2g} is rounding: {why}"
        )

    def _failure(self, text: str) -> ProbeFailure:
        return ProbeFailure(f"document {self.document.id}: {text}")


def _choices_of_answer(target: Target, document: Tokens, last_TH: Tensor) -> dict[str, int]:
    """Against the tokens of a greedy answer."""
    supervised, ids = list(document.supervised), list(document.ids)
    known = min(len(ids) - 1, last_TH.shape[0])
    rows = [t for t in range(known) if supervised[t + 1]] if document.greedy else []
    chosen, ties = _agreeing(target, last_TH, rows, lambda block: torch.tensor([ids[t + 1] for t in block]))
    return {"rows": len(rows), "chosen": chosen, "near_ties": ties}


def _choices_alone(target: Target, last_TH: Tensor, alone_TH: Tensor) -> dict[str, int]:
    """Against the model's own logits of the document alone."""
    count = last_TH.shape[0]
    rows = list(range(0, count, max(1, -(-count // HEAD_ROWS))))
    chosen, ties = _agreeing(target, last_TH, rows, lambda block: _logits(target, alone_TH[block]).argmax(dim=-1))
    return {"head_rows": len(rows), "head_equal": chosen, "head_near_ties": ties}


def _agreeing(
    target: Target, last_TH: Tensor, rows: Sequence[int], wanted: Callable[[list[int]], Tensor]
) -> tuple[int, int]:
    counts = [0, 0]
    for start in range(0, len(rows), HEAD_BLOCK):
        block = list(rows[start : start + HEAD_BLOCK])
        for i, count in enumerate(agreement(_logits(target, last_TH[block]), wanted(block))):
            counts[i] += count
    return counts[0], counts[1]


def _logits(target: Target, hidden_NH: Tensor) -> Tensor:
    return target.head(hidden_NH.to(target.head_weight)).cpu()
