"""Shapes, documents and starting weights of an EAGLE-3 training step, the same for both sides of the benchmark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from specflow.drafters.eagle3.geometry import Eagle3Geometry


@dataclass(frozen=True)
class Case:
    """Everything that decides what a step costs; by default a target of 135 M parameters."""

    hidden: int = 576
    intermediate: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    vocabulary: int = 49152
    draft_vocabulary: int = 16384
    depths: int = 7
    length: int = 512
    prompt: int = 128
    documents: int = 2

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        for field in fields(cls):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Case:
        return cls(**{f.name: getattr(options, f.name) for f in fields(cls)})

    @property
    def tokens(self) -> int:
        return self.documents * self.length

    @property
    def geometry(self) -> Eagle3Geometry:
        return Eagle3Geometry(
            hidden_size=self.hidden,
            num_layers=1,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1e5},
            steps=5,
            layer_ids=(1, 14, 26),
            vocab_size=self.vocabulary,
            draft_vocab_size=self.draft_vocabulary,
            fc_norm=False,
            norm_output=False,
            max_position_embeddings=8192,
        )


@dataclass(frozen=True)
class Made:
    table_VH: Tensor
    """The target's embedding and head."""
    draft_ids_D: Tensor
    ids_DT: Tensor
    features_DTKH: Tensor
    """bfloat16, as stored."""
    last_DTH: Tensor


def make(case: Case) -> Made:
    g = torch.Generator().manual_seed(0)
    shape = (case.documents, case.length)
    table_VH = torch.randn(case.vocabulary, case.hidden, generator=g) * 0.05
    draft_ids_D = torch.randperm(case.vocabulary, generator=g)[: case.draft_vocabulary].sort().values
    # Most texts are of the draft vocabulary, as they are when it was chosen from them.
    ids_DT = draft_ids_D[torch.randint(0, case.draft_vocabulary, shape, generator=g)]
    following = table_VH[ids_DT.roll(-1, dims=1)]
    return Made(
        table_VH=table_VH,
        draft_ids_D=draft_ids_D,
        ids_DT=ids_DT,
        features_DTKH=torch.randn(*shape, 3, case.hidden, generator=g).bfloat16(),
        last_DTH=(following * 4 + 0.02 * torch.randn(following.shape, generator=g)).bfloat16(),
    )


@torch.no_grad()
def fill(network: nn.Module) -> None:
    """Norms 1, matrices N(0, 0.02) in the order of their names."""
    g = torch.Generator().manual_seed(1)
    for _, parameter in sorted(network.named_parameters()):
        parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_(std=0.02, generator=g)
