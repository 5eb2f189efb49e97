"""Our training step of a ``train_case.Case``."""

from __future__ import annotations

from typing import Any

import torch
from train_case import Case, fill, make

from specflow.drafters.anchors import sample_anchors
from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.dflash.learner import DFlashLearner
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.objective import default_decay
from specflow.drafters.dspark.geometry import DSparkGeometry
from specflow.drafters.dspark.learner import DSparkLearner
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.training import Learner, Progress, Source
from specflow.training.frozen import FrozenEnds
from specflow.training.objective import Objective
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import accumulate_gradients


class Step:
    """Optimiser steps over the same documents: loss, gradients, clipping, AdamW.

    Anchors are spread evenly over each document; ``sampled``: drawn anew for every step, as in training.
    """

    def __init__(self, case: Case, *, sampled: bool = False) -> None:
        self.case, self._sampled, self._steps = case, sampled, 0
        self.network = DSparkNetwork(dspark_geometry(case)) if case.head_rank else DFlashNetwork(geometry(case))
        fill(self.network.named_parameters())
        made = make(case)
        self._frozen = FrozenEnds(made.table_VH, made.table_VH, softmax_tokens=torch.arange(case.vocabulary))
        anchors = torch.linspace(0, case.length - case.block, case.anchors + 1)[1:].long().unique()
        supervised = torch.ones(case.length, dtype=torch.bool)
        self.sources = [
            Source(
                token_ids_T=ids,
                supervised_T=supervised,
                features_TKH=features,
                anchors=anchors,
                last_hidden_TH=features[:, -1] if case.head_rank else None,
            )
            for ids, features in zip(made.ids_DT, made.features_DTKH, strict=True)
        ]
        learner = _learner(self.network, self._frozen, decay=default_decay(case.block))
        self.learner, self._wrapped = learner, Wrapped(Objective(learner), ranks=Ranks())
        self._optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-4, fused=True)

    def run(self) -> float:
        """The loss before the step."""
        if self._sampled:
            self.sources = [self._drawn(source, i) for i, source in enumerate(self.sources)]
        self._steps += 1
        self._optimizer.zero_grad(set_to_none=True)
        sums = accumulate_gradients(self._wrapped, self.learner, self.sources, progress=Progress(0, 1), ranks=Ranks())
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        return sums.loss

    @property
    def visible(self) -> int:
        """Context rows that the blocks see, summed over blocks."""
        return sum(int(source.anchors.sum()) for source in self.sources)

    def _drawn(self, source: Source, document: int) -> Source:
        drawn = sample_anchors(source.supervised_T, self.case.anchors, seed=0, epoch=self._steps, document=document)
        return Source(
            token_ids_T=source.token_ids_T,
            supervised_T=source.supervised_T,
            features_TKH=source.features_TKH,
            anchors=drawn,
            last_hidden_TH=source.last_hidden_TH,
        )


def _learner(network: DFlashNetwork, ends: FrozenEnds, *, decay: float) -> Learner:
    if isinstance(network, DSparkNetwork):
        return DSparkLearner(network, ends, decay=decay, weights={"cross_entropy": 0.1, "l1": 0.9, "confidence": 1.0})
    return DFlashLearner(network, ends, decay=decay)


def geometry(case: Case) -> DFlashGeometry:
    values: dict[str, Any] = {
        "hidden_size": case.hidden,
        "num_layers": case.layers,
        "num_heads": case.heads,
        "num_kv_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "intermediate_size": case.intermediate,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "block_size": case.block,
        "layer_ids": list(range(1, case.features + 1)),
        "vocab_size": case.vocabulary,
        "mask_token_id": case.vocabulary - 1,
        "max_position_embeddings": 40960,
    }
    return DFlashGeometry.from_dict(values)


def dspark_geometry(case: Case) -> DSparkGeometry:
    head = "rnn" if case.rnn else "markov"
    own = {"sample_from_anchor": not case.rnn, "head": head, "head_rank": case.head_rank, "confidence": True}
    return DSparkGeometry.from_dict({**geometry(case).to_dict(), **own})
