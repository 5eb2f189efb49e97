"""The training step of ``specforge`` for a ``train_case.Case``; runs in its own environment.

Its own draft model, objective of DFlash or DSpark (chunked with checkpointing, its default), training backend and
optimiser, in fp32 on the CPU with sdpa attention. One process without a process group, so its wrapper for several ranks
is left out.
"""

from __future__ import annotations

import torch
from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel, OnlineDSparkModel
from specforge.modeling.draft.dflash import DFlashDraftModel
from specforge.modeling.draft.dspark import DSparkDraftModel
from specforge.optimizer import BF16Optimizer
from specforge.training.backend import FSDPTrainingBackend, ParallelConfig
from train_case import Case, fill, make
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

DECAY = {16: 7.0, 10: 5.0, 8: 4.0}


class Step:
    """Optimiser steps over the same documents with anchors drawn for every step."""

    def __init__(self, case: Case) -> None:
        config = Qwen3Config(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=case.intermediate,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
            head_dim=case.head_dim,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            max_position_embeddings=40960,
            attention_bias=False,
        )
        config.block_size = case.block
        config.num_target_layers = 4 * case.features
        config.dflash_config = {
            "target_layer_ids": list(range(1, case.features + 1)),
            "mask_token_id": case.vocabulary - 1,
        }
        if case.head_rank:
            config.dflash_config |= {
                "markov_rank": case.head_rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": True,
                "confidence_head_with_markov": True,
            }
        config._attn_implementation = "sdpa"
        draft = (DSparkDraftModel if case.head_rank else DFlashDraftModel)(config).float().train()
        fill(draft.named_parameters())
        made = make(case)
        embed = torch.nn.Embedding.from_pretrained(made.table_VH, freeze=True)
        head = torch.nn.Linear(case.hidden, case.vocabulary, bias=False)
        head.weight = torch.nn.Parameter(made.table_VH, requires_grad=False)
        model = (OnlineDSparkModel if case.head_rank else OnlineDFlashModel)(
            draft,
            head,
            embed,
            mask_token_id=case.vocabulary - 1,
            block_size=case.block,
            attention_backend="sdpa",
            num_anchors=case.anchors,
            loss_decay_gamma=DECAY[case.block],
        )
        self._backend = FSDPTrainingBackend(
            ParallelConfig(sharding_strategy="NO_SHARD", param_dtype=torch.float32),
            optimizer_factory=lambda target: BF16Optimizer(target, lr=1e-4, max_grad_norm=1.0, total_steps=1000),
        )
        self._model = self._backend.prepare_model(model, wrap=False, optimizer_target=draft)
        self._batch = {
            "input_ids": made.ids_DT,
            "hidden_states": made.features_DTKH.flatten(2).float(),
            "loss_mask": torch.ones_like(made.ids_DT, dtype=torch.float32),
        }
        if case.head_rank:
            self._batch["target_last_hidden_states"] = made.features_DTKH[:, :, -1].float()

    def run(self) -> float:
        """The loss before the step."""
        loss, _, _ = self._model(**self._batch)
        self._backend.backward(loss)
        self._backend.step()
        return float(loss.detach())
