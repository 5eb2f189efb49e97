"""Are the stored features what they claim to be? Asked of the data before the first step (METHODS 9.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specflow.features.agreement import agreement
from specflow.training.data import FeatureSource

ROWS = 512


@torch.no_grad()
def alignment(
    source: FeatureSource, positions: Sequence[int], head: Callable[[Tensor], Tensor], *, rows: int = ROWS
) -> tuple[int, int]:
    """``(agreeing, judged)``: rows whose ``argmax head(last_hidden[t])`` is the supervised token at t + 1.

    A near tie agrees: bf16 storage may turn it. On answers that the target gave greedily nearly all rows agree;
    features that are one row or one layer off, or taken before the final norm, score near zero. Rows are spread over
    the documents.
    """
    per_document = max(1, -(-rows // max(1, len(positions))))
    stride = max(1, len(positions) * per_document // rows)
    hidden, wanted = [], []
    for position in positions[::stride]:
        document = source.document(position)
        predicted = document.supervised_T[1:].nonzero().squeeze(1)
        chosen = predicted[:: max(1, predicted.numel() // per_document)][:per_document]
        hidden.append(document.last_hidden_TH[chosen].float())
        wanted.append(document.token_ids_T[chosen + 1])
    if not hidden:
        return 0, 0
    labels = torch.cat(wanted)
    return sum(agreement(head(torch.cat(hidden)), labels)), labels.numel()


def spread_over_kinds(source: FeatureSource, positions: Sequence[int], count: int) -> list[int]:
    """Up to ``count`` positions, one kind after the other in turn, so that no kind is left out."""
    by_kind: dict[str, list[int]] = {}
    for position in positions:
        by_kind.setdefault(source.document(position).kind, []).append(position)
    queues = [list(reversed(found)) for _, found in sorted(by_kind.items())]
    chosen: list[int] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen


def has_bf16_units() -> bool:
    """Whether this CPU multiplies bf16 natively; elsewhere bf16 is emulated and slower than fp32."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in names)
