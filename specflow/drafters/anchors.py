"""Where training blocks begin: a pure function of (seed, epoch, document), so a restart samples the same anchors."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def raw_stream(*key: int | str, count: int) -> np.ndarray:
    """``count`` uint64 from Philox keyed by a hash of ``key``. Raw output is fixed by the algorithm's definition,
    unlike ``Generator`` methods, which may change between numpy releases."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    raw: np.ndarray = np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64)).random_raw(count)
    return raw


def legal_anchors(supervised_T: Tensor) -> Tensor:
    """Positions t with ``supervised[t]`` and ``supervised[t + 1]``."""
    both = supervised_T[:-1] & supervised_T[1:]
    return both.nonzero().squeeze(1)


def sample_anchors(supervised_T: Tensor, count: int, *, seed: int, epoch: int, document: int) -> Tensor:
    """Up to ``count`` distinct legal anchors, increasing; empty if the document has none."""
    legal = legal_anchors(supervised_T)
    if legal.numel() <= count:
        return legal
    order = np.argsort(raw_stream("anchors", seed, epoch, document, count=legal.numel()), kind="stable")
    chosen = torch.from_numpy(order[:count].copy())
    return legal[chosen].sort().values


def document_order(count: int, *, seed: int, epoch: int) -> list[int]:
    """A permutation of ``range(count)`` for one epoch."""
    order: list[int] = np.argsort(raw_stream("order", seed, epoch, count=count), kind="stable").tolist()
    return order
