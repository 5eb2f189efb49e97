"""EAGLE in training: every row predicts the target's next hidden state, and through the head the token after it.

METHODS 2. One step deep, from the target's own states with noise. Anchors are not read: every row that predicts a
supervised token trains. Legend: P predicted tokens, N starts, H hidden size, D tokens that can be proposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from specflow.drafters.choice import best_tokens
from specflow.drafters.cross_entropy import target_cross_entropy
from specflow.drafters.draft_vocabulary import can_follow
from specflow.drafters.eagle.forward import EagleRollout, as_feature, with_last_hidden
from specflow.drafters.eagle.memory import pass_bytes
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.eagle.noise import uniform_noise
from specflow.drafters.rollout_forward import rolled_out
from specflow.drafters.rollouts import Predicted, Rollouts, assemble, predicted_places
from specflow.drafters.state_walk import StateWalk, teacher_forced
from specflow.drafters.training import Counts, Ends, Learner, Progress, Source, Term, Text

FEATURE, TOKEN = "feature", "soft_ce"
OUTSIDE = "outside_vocabulary"
"""A term without weight: the share of predicted tokens that the draft vocabulary cannot express: no soft_ce of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    rollouts: Rollouts
    predicted: Predicted
    noise: tuple[tuple[tuple[int, int, int], int], ...]
    """Key and tokens of each document."""


class EagleLearner(Learner):
    network: EagleNetwork

    def __init__(
        self, network: EagleNetwork, ends: Ends, *, feature_weight: float, token_weight: float, noise: float
    ) -> None:
        self.network, self._ends, self._noise = network, ends, noise
        self._weights = {FEATURE: feature_weight, TOKEN: token_weight}

    @cached_property
    def _head_DH(self) -> Tensor:
        """Of the loss: what can be proposed, else the tokens of the training softmax."""
        ids_D = self.network.draft_ids_D
        return self._ends.head_RH if ids_D is None else self._ends.head_rows(ids_D)

    def weights(self, progress: Progress) -> Mapping[str, float]:
        return self._weights if self.network.draft_ids_D is None else {**self._weights, OUTSIDE: 0.0}

    def prepare(self, sources: Sequence[Source]) -> Batch | None:
        """Raises ``ValueError`` for a source without the target's last hidden states."""
        used = [with_last_hidden(source) for source in sources if predicted_places(source).numel()]
        made = assemble(used, depths=1)
        if made is None:
            return None
        noise = tuple((source.key, source.token_ids_T.numel()) for source in used)
        return Batch(rollouts=made.rollouts, predicted=made.predicted, noise=noise)

    def counts(self, batch: Batch) -> Counts:
        rollouts, labels = batch.rollouts, batch.predicted.labels_P.numel()
        return Counts(anchors=rollouts.starts_N.numel(), labels=labels, context_rows=rollouts.positions_S.numel())

    def denominators(self, batch: Batch, progress: Progress) -> Mapping[str, float]:
        predicted, kept = batch.predicted.labels_P.numel(), int(self._kept(batch.predicted).sum())
        return {name: float(kept if name == TOKEN else predicted) for name in self.weights(progress)}

    def objective(self, batch: Batch, progress: Progress) -> Sequence[Term]:
        predicted, kept_P = batch.predicted, self._kept(batch.predicted)
        hidden_NH = self._hidden(batch.rollouts, self._noise_of(batch))[0]
        found_PH, wanted_PH = hidden_NH[predicted.starts_PL[:, 0]], predicted.teacher_PH
        feature = F.smooth_l1_loss(found_PH, wanted_PH.float(), reduction="none").mean(dim=1).sum()
        token = target_cross_entropy(
            found_PH[kept_P],
            self._head_DH,
            torch.zeros_like(predicted.labels_P[kept_P]),
            teacher_MH=wanted_PH[kept_P],
            share=1.0,
        ).sum()
        count = feature.new_tensor(float(wanted_PH.shape[0]))
        terms = [Term(FEATURE, feature, count), Term(TOKEN, token, kept_P.sum().to(token))]
        if OUTSIDE in self.weights(progress):
            terms.append(Term(OUTSIDE, (~kept_P).sum().to(token), count))
        return terms

    def pass_bytes(self, *, anchors: int, context_rows: int, softmax_rows: int) -> int:
        return pass_bytes(self.network.geometry, rows=context_rows, head_rows=self._head_DH.shape[0])

    def walk(self, texts: Sequence[Text]) -> StateWalk:
        return StateWalk(
            EagleRollout(self.network),
            texts,
            [as_feature(text.last_hidden_TH) for text in texts],
            embed=self._ends.embed,
            choose=self._choose,
            steps=self.network.geometry.steps,
            device=self.network.fc.weight.device,
        )

    def teacher_forced(self, sources: Sequence[Source]) -> tuple[int, int]:
        return teacher_forced(
            [with_last_hidden(source) for source in sources],
            self._hidden,
            choose=self._choose,
            steps=self.network.geometry.steps,
            device=self.network.fc.weight.device,
        )

    def _hidden(self, rollouts: Rollouts, noise_SKH: Tensor | None = None) -> Tensor:
        return rolled_out(EagleRollout(self.network), rollouts, self._ends.embed, noise_SKH=noise_SKH)

    def _noise_of(self, batch: Batch) -> Tensor | None:
        """``[S, 1, H]``, of the rows that each document has in the pass."""
        if not self._noise:
            return None
        size, parts = self.network.geometry.hidden_size, []
        for span, (key, length) in zip(batch.rollouts.spans, batch.noise, strict=True):
            rows = span.context[1] - span.context[0]
            parts.append(uniform_noise(rows, size, width=self._noise, length=length, key=key))
        return torch.cat(parts).unsqueeze(1).to(self.network.fc.weight.device)

    def _choose(self, hidden: Tensor) -> Tensor:
        g, ids_D = self.network.geometry, self.network.draft_ids_D
        if ids_D is None:
            return best_tokens(hidden, self._ends.head, width=g.vocab_size, ids_D=None)
        head_DH = self._head_DH
        return best_tokens(hidden, lambda part: part.float() @ head_DH.T, width=ids_D.numel(), ids_D=ids_D)

    def _kept(self, predicted: Predicted) -> Tensor:
        """``[P]``: the target's own choice can be proposed."""
        if predicted.kept_P is None:
            ids_D, total = self.network.draft_ids_D, self.network.geometry.vocab_size
            if ids_D is None:
                predicted.kept_P = torch.ones_like(predicted.labels_P, dtype=torch.bool)
            else:
                predicted.kept_P = can_follow(predicted.teacher_PH, self._ends.head, ids_D, total=total)
        return predicted.kept_P
