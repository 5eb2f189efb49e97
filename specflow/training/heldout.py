"""The held-out walk during training: the first rank walks, all learn the result."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from specflow.config.drafter import DrafterParams
from specflow.drafters.base import Proposer
from specflow.drafters.registry import Method
from specflow.training.data import TrainingDocument
from specflow.training.evaluate import evaluate
from specflow.training.evaluation import Evaluation
from specflow.training.frozen import FrozenEnds
from specflow.training.ranks import Ranks
from specflow.training.tensors import whole


class Heldout:
    """Made before the network is shared out: where ranks hold parts of it, the first walks with a copy."""

    def __init__(
        self,
        method: Method,
        network: nn.Module,
        ends: FrozenEnds,
        params: DrafterParams,
        *,
        texts: Sequence[TrainingDocument],
        present: bool,
        ranks: Ranks,
    ) -> None:
        """``texts`` are needed on the first rank only; ``present``: whether there are any there."""
        self.present = present
        self._method, self._ends, self._texts, self._ranks = method, ends, texts, ranks
        shared_out = ranks.size > 1 and params.train.parallel == "fsdp"
        self._copy = copy.deepcopy(network) if shared_out else None
        own = self._copy if self._copy is not None else network
        self._learner = method.build_learner(own, ends, params)
        self._proposals = method.layout(own).num_proposals
        self._network = own

    def evaluate(self, network: nn.Module) -> tuple[float, Evaluation | None]:
        """Tau on every rank, and on the first what was found."""
        if self._copy is not None:
            self._fill(self._copy, network)
        found = None
        if self._ranks.first:
            found = evaluate(self._learner, self._texts, proposals=self._proposals, proposer=self._proposer)
        tau: float = self._ranks.from_first(found.walk.tau if found else None)
        return tau, found

    def _proposer(self) -> Proposer:
        return self._method.build_proposer(self._network, self._ends, precision="fp32")

    @torch.no_grad()
    def _fill(self, own: nn.Module, network: nn.Module) -> None:
        parameters = dict(own.named_parameters())
        for name, value in network.named_parameters():
            parameters[name].copy_(whole(value))
