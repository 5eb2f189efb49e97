"""The next token of each row of a batch, greedy or sampled with the row's own generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def choose_tokens(logits_BV: Tensor, generators: Sequence[Generator | None], *, temperature: float) -> list[int]:
    """One token per row. Temperature 0 is greedy, ties to the lowest id; else a draw from the softmax.

    A row's draws depend on its logits and its generator only, not on the other rows.
    """
    if temperature == 0.0:
        greedy: list[int] = logits_BV.argmax(dim=-1).tolist()
        return greedy
    probabilities_BV = torch.softmax(logits_BV.float() / temperature, dim=-1)
    rows = zip(probabilities_BV, generators, strict=True)
    return [int(torch.multinomial(row, 1, generator=generator)) for row, generator in rows]
