"""A source of documents in memory, and a monitor that can play the part of a kill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.drafters.dflash.network import DFlashNetwork
from specflow.training.data import Documents
from specflow.training.frozen import FrozenEnds
from tests.drafters.helpers import VOCAB, document, network, tables


@dataclass
class Stored:
    index: int
    kind: str
    split: str
    token_ids_T: Tensor
    supervised_T: Tensor
    features_TKH: Tensor
    last_hidden_TH: Tensor


class MemorySource:
    """Documents whose features are noise with the token before mixed in, so that there is something to learn."""

    def __init__(self, lengths: list[int], heldout: int = 2, prompt: int = 8) -> None:
        self.stored = []
        embedding, _ = tables()
        for i, length in enumerate(lengths):
            made = document(50 + i, length, prompt=min(prompt, length))
            features = (made.features * 0.1 + embedding[made.ids].unsqueeze(1)).bfloat16()
            split = "heldout" if i >= len(lengths) - heldout else "train"
            self.stored.append(
                Stored(i, "ab"[i % 2], split, made.ids, made.supervised, features, torch.zeros(length, 32).bfloat16())
            )

    def __len__(self) -> int:
        return len(self.stored)

    def indices(self, split: str | None = None) -> list[int]:
        return [i for i, d in enumerate(self.stored) if split in (None, d.split)]

    def document(self, position: int) -> Stored:
        return self.stored[position]


def documents(lengths: list[int] | None = None) -> tuple[MemorySource, Documents]:
    source = MemorySource(lengths or [24, 31, 20, 40, 27, 33, 22, 29])
    return source, Documents(source, columns=[0, 1, 2])


def ends(tokens: Tensor | None = None) -> FrozenEnds:
    embedding, head = tables()
    return FrozenEnds(embedding, head, softmax_tokens=torch.arange(VOCAB) if tokens is None else tokens)


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


class Bar:
    def __init__(self, kill_after: int | None) -> None:
        self.steps, self.kill_after = 0.0, kill_after

    def advance(self, amount: float = 1) -> None:
        self.steps += amount
        if self.kill_after is not None and self.steps >= self.kill_after:
            raise Killed

    def describe(self, text: str) -> None:
        pass

    def figures(self, values: Mapping[str, float]) -> None:
        pass


class Monitor:
    def __init__(self, kill_after: int | None = None) -> None:
        self.kill_after = kill_after
        self.messages: list[str] = []

    def log(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Bar]:
        yield Bar(self.kill_after)


def fresh(seed: int = 0) -> DFlashNetwork:
    return network(seed).train()
