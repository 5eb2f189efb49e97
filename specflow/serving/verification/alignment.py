"""METHODS 9.4: stored features belong to their tokens, their layers and this target.

Legend: T tokens, K captured layers, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specflow.features.diagnosis import layer_name, row_errors
from specflow.features.quantise import as_stored
from specflow.serving.verification.check import Check

if TYPE_CHECKING:
    from specflow.features.document import Document

AGREEMENT = 0.999
TIE = 2.0**-6
"""Gap relative to the largest logit that rounding the stored hidden state to bf16 may hide."""
LAYER_ERROR = 0.1
SHOWN = 5


def check_alignment(
    documents: Sequence[Document],
    *,
    target: Any,
    layer_ids: tuple[int, ...],
    dtype: str = "bfloat16",
    on_document: Callable[[], None] = lambda: None,
) -> Check:
    """Run the target again over stored documents and compare argmax and layers, for every row that is stored.

    Recomputed rows are rounded as the stored ones are (``dtype`` of the contract), so that the comparison need not
    allow for it.

    A layer passes if its stored rows are nearer to the stated layer than to the one before (for the first: what it
    reads) or after it, and the median relative error of a row is at most ``LAYER_ERROR``.
    """
    agree = ties = rows = 0
    candidates = sorted({k + step for k in layer_ids for step in (-1, 0, 1)})
    errors: dict[int, dict[int, list[Tensor]]] = {k: {} for k in layer_ids}
    failures: list[str] = []
    for document in documents:
        states, last_TH = target.residual_states(document.token_ids_T, candidates)
        stored_rows = document.last_hidden_TH.shape[0]
        want = target.head(as_stored(last_TH[:stored_rows], dtype).to(last_TH.dtype)).float()
        found = target.head(document.last_hidden_TH.to(last_TH.dtype)).float()
        chosen, stored = want.argmax(-1), found.argmax(-1)
        gaps = want.gather(1, chosen[:, None]) - want.gather(1, stored[:, None])
        near = gaps.flatten() <= TIE * want.abs().amax(-1)
        same = chosen == stored
        agree, ties, rows = agree + int(same.sum()), ties + int((near & ~same).sum()), rows + same.numel()
        wrong = (~same & ~near).nonzero().flatten().tolist()
        failures += [f"document {document.id or document.index}, row {t}: another next token" for t in wrong[:1]]
        states = {k: as_stored(state[:stored_rows], dtype) for k, state in states.items()}
        _collect(errors, document.features_TKH, states, layer_ids=layer_ids)
        on_document()
    share = (agree + ties) / max(rows, 1)
    layers = {k: {c: float(torch.cat(e).median()) for c, e in found.items()} for k, found in errors.items()}
    bad = _bad_layers(layers)
    return Check(
        name="alignment",
        what="Stored features are those of their tokens and layers",
        passed=rows > 0 and share >= AGREEMENT and not bad,
        numbers={
            "rows": rows,
            "equal_next_token": agree / max(rows, 1),
            "with_near_ties": share,
            "relative_error_by_layer": {str(k): found.get(k) for k, found in layers.items()},
        },
        limit=f"next token equal on >= {AGREEMENT:.1%} of the rows, each layer nearest to itself",
        failures=[*bad, *(failures if share < AGREEMENT else [])][:SHOWN],
    )


def check_tokens(documents: Sequence[Document], ids: Mapping[int, Sequence[int]]) -> Check:
    """Token ids stored beside the features are those of the tokens artifact (``ids`` by row)."""
    wrong = [d for d in documents if list(ids.get(d.index, ())) != d.token_ids_T.tolist()]
    return Check(
        name="tokens",
        what="Features were captured on the documents of the tokens artifact",
        passed=bool(documents) and not wrong,
        numbers={"documents": len(documents), "differing": len(wrong)},
        limit="no difference",
        failures=[f"document {d.id or d.index}: other token ids" for d in wrong[:SHOWN]],
    )


def _collect(
    errors: dict[int, dict[int, list[Tensor]]],
    stored_TKH: Tensor,
    states: Mapping[int, Tensor],
    *,
    layer_ids: tuple[int, ...],
) -> None:
    for index, k in enumerate(layer_ids):
        stored_TH = stored_TKH[:, index]
        for near in (k - 1, k, k + 1):
            errors[k].setdefault(near, []).append(row_errors(stored_TH, states[near][: stored_TH.shape[0]]))


def _bad_layers(layers: Mapping[int, Mapping[int, float]]) -> list[str]:
    found = []
    for k, errors in layers.items():
        if not errors:
            continue
        nearest = min(errors, key=lambda c: errors[c])
        if nearest != k:
            of = f"the output of {layer_name(nearest)}" if nearest >= 0 else layer_name(nearest)
            found.append(f"layer {k}: the stored rows are nearer to {of}")
        elif not errors[k] <= LAYER_ERROR:
            found.append(f"layer {k}: median relative error {errors[k]:.3g}, at most {LAYER_ERROR} expected")
    return found
