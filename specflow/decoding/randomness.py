"""Random numbers of a request as a function of (seed, purpose, place): no state, so no order of requests matters.

Philox keyed by a hash; its raw output is fixed by the algorithm's definition, so numbers hold for every release.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor


class Purpose(StrEnum):
    """What a number decides. Numbers of two purposes, or of two places, are independent."""

    TARGET = "target"
    """The target's own token; place: (index in the output,). Every index is emitted once."""
    DRAFT = "draft"
    """A proposal; place: (index of the round's first proposal, proposal)."""
    ACCEPT = "accept"
    """Whether a proposal stays; place as for drafts. A round begins at a new index, so none is used twice.

    In a tree, which of the proposals at a depth stays; place: (index of the round's first proposal, depth)."""


class RequestRandom:
    """Decisions of the request with this seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def accepts(self, *, p: float, q: float, place: tuple[int, ...]) -> bool:
        """True with probability ``min(1, p / q)``; ``q`` above 0."""
        return self.coin(place=place) * q < p

    def coin(self, *, place: tuple[int, ...]) -> float:
        """A number in [0, 1) that decides what stays at ``place``."""
        return float(self._uniform(Purpose.ACCEPT, place, 1)[0])

    def choose(self, weights_V: Tensor, *, purpose: Purpose, place: tuple[int, ...]) -> int:
        """An id with probability in proportion to its weight, which need not sum to 1.

        An exponential race: every id has its own number, so weights that differ by rounding give another id only
        where two ids arrive within that rounding. Inverting a running sum would shift every id's interval.
        """
        ids = weights_V.nonzero().squeeze(1)
        if ids.numel() == 1:
            return int(ids)
        ids_S, weights_S = ids.cpu().numpy(), weights_V[ids].to(torch.float64).cpu().numpy()
        arrivals_S = -np.log1p(-self._uniform(purpose, place, int(ids_S[-1]) + 1)[ids_S]) / weights_S
        return int(ids_S[arrivals_S.argmin()])

    def _uniform(self, purpose: Purpose, place: tuple[int, ...], count: int) -> np.ndarray:
        """``count`` numbers in [0, 1) with 53 bits."""
        name = repr((self._seed, purpose.value, *place)).encode()
        key = np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype=np.uint64)
        raw: np.ndarray = np.random.Philox(key=key).random_raw(count)
        return (raw >> np.uint64(11)) * 2.0**-53
