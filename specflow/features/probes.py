"""Checks that captured features are what the contract says, on sampled documents.

A sampled document is computed again alone and compared: with what was captured in a batch (features
of another request, or shifted by a row, differ), and with the layers next to each declared one (a
layer early or late matches a neighbour better). And the head on ``last_hidden`` must choose the
tokens that the target chose when it answered (METHODS 9.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.data.documents import TokenDocument
from specflow.features.agreement import LEAST_AGREEMENT, agreement
from specflow.features.capture import Captured
from specflow.targets.device import to_host
from specflow.targets.target import Target

TOLERANCE = {"bf16": 0.15}
DEFAULT_TOLERANCE = 0.02
"""Largest relative difference of a row, in norm. Rounding to bfloat16 alone gives 0.002."""


class ProbeFailure(Exception):
    """Captured features are not what they should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one document showed. Sums, so that shards add up."""

    error: float
    """Largest relative difference between batch and alone."""
    neighbour_error: float | None
    """Smallest relative difference to a neighbouring layer; none if there are no neighbours."""
    rows: int
    """Supervised rows whose next token is known to be greedy."""
    chosen: int
    """Of these, rows where the head chooses exactly that token."""
    near_ties: int
    """Of the others, rows where it chooses another one by a hair."""


def probe_document(target: Target, layer_ids: tuple[int, ...], document: TokenDocument, captured: Captured) -> Probe:
    """Raises :class:`ProbeFailure` naming document, layer and both errors."""
    wanted = _with_neighbours(layer_ids, target.num_layers)
    cache = target.new_cache(1, len(document.ids))
    alone = target.forward(torch.tensor([document.ids]), cache, layer_ids=wanted)
    assert alone.features_BTKH is not None
    features_TKH, last_hidden_TH = to_host(alone.features_BTKH[0], alone.last_hidden_BTH[0])
    tolerance = TOLERANCE.get(target.precision, DEFAULT_TOLERANCE)
    errors = [_row_error(captured.last_hidden_TH, last_hidden_TH)]
    _require(errors[0] <= tolerance, document, "last_hidden", errors[0], tolerance)
    neighbours: list[float] = []
    for position, layer in enumerate(layer_ids):
        ours = captured.features_TKH[:, position]
        by_layer = {k: _row_error(ours, features_TKH[:, i]) for i, k in enumerate(wanted) if abs(k - layer) <= 1}
        errors.append(by_layer.pop(layer))
        neighbours += by_layer.values()
        best = min(by_layer, key=lambda k: by_layer[k], default=layer)
        if by_layer and by_layer[best] < errors[-1]:
            raise ProbeFailure(
                f"document {document.id}: the features declared as layer {layer} match layer {best} better "
                f"(relative difference {by_layer[best]:.2g} against {errors[-1]:.2g})"
            )
        _require(errors[-1] <= tolerance, document, f"layer {layer}", errors[-1], tolerance)
    rows, chosen, ties = _alignment(target, document, captured.last_hidden_TH)
    return Probe(
        error=max(errors), neighbour_error=min(neighbours, default=None), rows=rows, chosen=chosen, near_ties=ties
    )


def judge_alignment(probes: Sequence[Probe], *, least: float = LEAST_AGREEMENT) -> None:
    """Raise :class:`ProbeFailure` if the head does not choose the target's own tokens often enough."""
    rows = sum(p.rows for p in probes)
    good = sum(p.chosen + p.near_ties for p in probes)
    if rows and good < least * rows:
        raise ProbeFailure(
            f"argmax head(last_hidden[t]) is the target's own next token in {good} of {rows} rows ({good / rows:.1%}), "
            f"expected at least {least:.0%}: last_hidden is not what the head reads, rows are shifted, or the "
            "answers are not this target's greedy ones"
        )


def _with_neighbours(layer_ids: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    near = {k + step for k in layer_ids for step in (-1, 0, 1)}
    return tuple(sorted(k for k in near if 0 <= k < num_layers - 1))


def _row_error(one_TH: Tensor, two_TH: Tensor) -> float:
    """Largest over rows of |one - two| / |two|."""
    one, two = one_TH.float(), two_TH.float()
    return float(((one - two).norm(dim=-1) / two.norm(dim=-1).clamp_min(1e-12)).max())


def _require(good: bool, document: TokenDocument, what: str, error: float, tolerance: float) -> None:
    if not good:
        raise ProbeFailure(
            f"document {document.id}: {what} captured in a batch differs from the document alone by {error:.2g} "
            f"(relative, largest row), at most {tolerance:.2g} is rounding: rows belong to another document or position"
        )


def _alignment(target: Target, document: TokenDocument, last_hidden_TH: Tensor) -> tuple[int, int, int]:
    rows = [t for t in range(len(document.ids) - 1) if document.supervised[t + 1]] if document.greedy else []
    if not rows:
        return 0, 0, 0
    logits_NV = target.head(last_hidden_TH[rows].to(target.head_weight))
    return len(rows), *agreement(logits_NV.cpu(), torch.tensor([document.ids[t + 1] for t in rows]))
