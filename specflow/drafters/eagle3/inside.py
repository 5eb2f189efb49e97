"""Which predicted tokens the draft vocabulary can express: those whose likeliest token, by the target, is in it.

It takes a product with the whole head and is the same in every epoch, so it is remembered by the content of a
document's rows. Legend: P predicted tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from specflow.drafters.training import Ends

ROWS, COLUMNS = 512, 6144
"""Of one product: 12 MB of logits in fp32, in one buffer for all of them."""
REMEMBERED = 1 << 26
"""Tokens, a byte each."""


class InsideVocabulary:
    """``t2d_V``: bool, whether a token of the target can be proposed."""

    def __init__(self, t2d_V: Tensor, ends: Ends) -> None:
        self._t2d_V, self._ends = t2d_V, ends
        self._known: dict[bytes, Tensor] = {}
        self._tokens = 0

    @torch.no_grad()
    def __call__(self, teacher_PH: Tensor, documents: Sequence[int]) -> Tensor:
        """``[P]`` bool. ``documents``: how many of the rows are of each, in order."""
        parts = torch.split(teacher_PH, list(documents))
        keys = [_content(part) for part in parts]
        found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: part for key, part in zip(keys, parts, strict=True) if key not in found}
        if new:
            inside = self._t2d_V[likeliest(torch.cat(list(new.values())).float(), self._ends.head_rows(None))]
            made = torch.split(inside, [len(part) for part in new.values()])
            found |= {key: part.clone() for key, part in zip(new, made, strict=True)}
            self._remember({key: found[key] for key in new})
        return torch.cat([found[key] for key in keys])

    def _remember(self, found: Mapping[bytes, Tensor]) -> None:
        if self._tokens > REMEMBERED:
            self._known, self._tokens = {}, 0
        self._known.update(found)
        self._tokens += sum(part.numel() for part in found.values())


def likeliest(hidden_PH: Tensor, head_VH: Tensor) -> Tensor:
    """``[P]`` argmax of ``hidden @ head.T``, of equal ones the lowest id; a few rows and columns at a time."""
    found = []
    buffer = hidden_PH.new_empty(min(ROWS, len(hidden_PH)) * min(COLUMNS, len(head_VH)))
    for rows_RH in torch.split(hidden_PH, ROWS):
        best_R = rows_RH.new_full((len(rows_RH),), float("-inf"))
        chosen_R = torch.zeros(len(rows_RH), dtype=torch.int64, device=rows_RH.device)
        for first in range(0, len(head_VH), COLUMNS):
            columns = head_VH[first : first + COLUMNS]
            logits = buffer[: len(rows_RH) * len(columns)].view(len(rows_RH), len(columns))
            torch.mm(rows_RH, columns.T, out=logits)
            at_R = logits.argmax(dim=1)
            top_R = logits.gather(1, at_R.unsqueeze(1)).squeeze(1)
            better_R = top_R > best_R
            best_R, chosen_R = torch.where(better_R, top_R, best_R), torch.where(better_R, at_R + first, chosen_R)
        found.append(chosen_R)
    return torch.cat(found)


def _content(rows_PH: Tensor) -> bytes:
    return blake2b(rows_PH.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()
