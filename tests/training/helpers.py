"""A source of documents in memory, and a monitor that can play the part of a kill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specflow.config.drafter import TrainParams
from specflow.drafters.block_loss import BlockLoss
from specflow.drafters.dflash import method as dflash
from specflow.drafters.dflash.learner import DFlashLearner
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.params import Params
from specflow.drafters.training import Progress, Source
from specflow.training.data import Documents, TrainingDocument
from specflow.training.evaluate import evaluate
from specflow.training.evaluation import Evaluation
from specflow.training.frozen import FrozenEnds
from specflow.training.loop import Trainer
from specflow.training.objective import Objective
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, accumulate_gradients
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


def trainer(
    net: DFlashNetwork, params: TrainParams, *, decay: float, docs: Documents, scratch: Path, **given: Any
) -> Trainer:
    """A trainer of a DFlash network; ``given`` may have other ends, a monitor, and needs ``train`` and ``heldout``."""
    options: dict[str, Any] = {"ends": ends(), "monitor": Monitor(), **given}
    own = Params(method="dflash", block_size=net.geometry.block_size, position_decay=decay, train=params)
    return Trainer(method=dflash, network=net, params=own, documents=docs, scratch=scratch, **options)


def gradients_of(
    net: DFlashNetwork,
    sources: list[Source],
    frozen: FrozenEnds,
    *,
    decay: float,
    soft_targets: float = 0.0,
    documents_per_pass: int | None = None,
) -> StepSums:
    """Gradients of one step, in the network."""
    learner = DFlashLearner(net, frozen, decay=decay, loss=BlockLoss(soft_targets=soft_targets))
    wrapped, progress = Wrapped(Objective(learner), ranks=Ranks()), Progress(0, 1)
    return accumulate_gradients(
        wrapped, learner, sources, progress=progress, ranks=Ranks(), documents_per_pass=documents_per_pass
    )


def walked(net: DFlashNetwork, docs: list[TrainingDocument], frozen: FrozenEnds) -> Evaluation:
    def proposer() -> Any:
        raise AssertionError("DFlash walks side by side")

    learner = DFlashLearner(net, frozen, decay=1.0)
    return evaluate(learner, docs, proposals=net.geometry.block_size - 1, proposer=proposer)
