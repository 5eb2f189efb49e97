"""The candidate selector (METHODS 7): which of a position's K most likely tokens follows which of the position before.

Legend: M positions, K candidates, H hidden size, r rank, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CandidateSelector(nn.Module):
    """Adds ``<A[predecessor] * P h, B[successor]>`` to a candidate's own logit. Names are the serving engine's.

    With the successor codebook at zero, as at birth, it adds nothing.
    """

    def __init__(self, hidden_size: int, vocab_size: int, *, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, *, std: float) -> None:
        for weight in (self.predecessor_codebook, self.hidden_projection.weight):
            weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        self.successor_codebook.zero_()

    def pairs(self, hidden_MH: Tensor, predecessors_MP: Tensor, candidates_MK: Tensor) -> Tensor:
        """``[M, P, K]``: what each candidate gains after each of P predecessors."""
        left_MPr = self.predecessor_codebook[predecessors_MP] * self.hidden_projection(hidden_MH).unsqueeze(1)
        out: Tensor = left_MPr @ self.successor_codebook[candidates_MK].transpose(1, 2)
        return out


def predecessors(anchor: int, candidates_mK: Tensor) -> Tensor:
    """``[m, K]``: the tokens that may stand before each position; the anchor alone before the first."""
    first = candidates_mK.new_full((1, candidates_mK.shape[1]), anchor)
    return torch.cat((first, candidates_mK[:-1]))


def greedy_path(candidates_mK: Tensor, lattice_mKK: Tensor) -> Tensor:
    """``[m]`` tokens: from the anchor on, each time the best candidate after the one just taken, not the best path.

    ``lattice[i, p, c]``: candidate c of position i after candidate p of the one before (after the anchor for i = 0).
    Candidates increase, so of equal scores the lowest id is taken.
    """
    best: list[list[int]] = lattice_mKK.argmax(dim=2).tolist()
    at, path = 0, []
    for row in best:
        at = row[at]
        path.append(at)
    return candidates_mK.gather(1, torch.tensor(path).unsqueeze(1)).squeeze(1)
