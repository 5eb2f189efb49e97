"""Shapes, documents and starting weights of a training step, and memory of a process; for the benchmarks of training.

Imports torch only, so that a peer's environment can read it too. Shapes are those of a small Qwen3-like target unless
options say otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """Everything that decides what a step costs."""

    hidden: int = 512
    intermediate: int = 1536
    layers: int = 2
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    features: int = 3
    vocabulary: int = 32000
    block: int = 8
    anchors: int = 64
    length: int = 512
    documents: int = 1
    head_rank: int = 0
    """Of DSpark's sequential head; 0: DFlash."""
    rnn: int = 0
    """1: DSpark's recurrent head, without a proposal in the anchor's row; 0: its Markov head, with one (the recipe)."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        for field in fields(cls):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)

    @classmethod
    def of(cls, options: argparse.Namespace, **changes: int) -> Case:
        return cls(**{f.name: getattr(options, f.name) for f in fields(cls)} | changes)

    @property
    def tokens(self) -> int:
        """Tokens of the documents of a step."""
        return self.documents * self.length


@dataclass(frozen=True)
class Made:
    """The target's embedding, which is its head too, and documents whose tokens are all supervised."""

    table_VH: Tensor
    ids_DT: Tensor
    features_DTKH: Tensor
    """bfloat16."""


def make(case: Case) -> Made:
    g = torch.Generator().manual_seed(0)
    shape = (case.documents, case.length)
    return Made(
        table_VH=torch.randn(case.vocabulary, case.hidden, generator=g) * 0.02,
        ids_DT=torch.randint(0, case.vocabulary - 1, shape, generator=g),
        features_DTKH=torch.randn(*shape, case.features, case.hidden, generator=g).bfloat16(),
    )


@torch.no_grad()
def fill(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Norms 1, matrices N(0, 0.02) in the order of their names: the same for every program with these names."""
    g = torch.Generator().manual_seed(1)
    for _, parameter in sorted(parameters, key=lambda pair: pair[0]):
        if parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            parameter.copy_(torch.randn(parameter.shape, generator=g) * 0.02)


def resident() -> int:
    """Bytes of memory this process holds now (Linux)."""
    return _status("VmRSS")


def peak() -> int:
    """Most bytes of memory this process has held since its start or ``forget_peak``."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let ``peak`` begin anew from what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
