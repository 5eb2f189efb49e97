"""One optimiser step's loss and gradients, equal for any split into passes.

The denominator (the sum of the weights of everything in the step) depends on labels only, so it is known before
the first forward pass and shared by all passes (METHODS 9.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specflow.drafters.dflash.blocks import Blocks, Source, assemble, block_embeddings
from specflow.drafters.dflash.network import Context, DFlashNetwork
from specflow.drafters.dflash.objective import total_weight, weighted_cross_entropy
from specflow.training.frozen import FrozenEnds
from specflow.training.passes import ROWS_PER_PASS, split_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over one step; documents without an anchor contribute zero and are counted."""

    weighted_loss: float
    weight: float
    blocks: int
    labels: int
    context_rows: int
    documents_without_anchor: int


def hidden_of(network: DFlashNetwork, blocks: Blocks, frozen: FrozenEnds) -> torch.Tensor:
    """``[N, B - 1, H]``: what the head reads for every proposal of every block."""
    keys, values = network.project_context(blocks.features_SKH, blocks.context_positions_S)
    g = network.geometry
    embeds = block_embeddings(
        frozen.embed(blocks.anchor_ids_N), frozen.embed(torch.tensor(g.mask_token_id)), block_size=g.block_size
    )
    context = Context(keys=keys, values=values, spans=blocks.spans, visible_N=blocks.visible_N)
    hidden: torch.Tensor = network(embeds, blocks.positions_NB, context, first_row=1)
    return hidden


def accumulate_gradients(
    network: DFlashNetwork,
    sources: Sequence[Source],
    frozen: FrozenEnds,
    *,
    decay: float,
    soft_targets: float = 0.0,
    documents_per_pass: int | None = None,
    autocast: bool = False,
) -> StepSums:
    """Add the gradient of ``sum M w CE / sum M w`` over all ``sources`` to the parameters' ``grad``.

    ``soft_targets``: see ``weighted_cross_entropy``; above 0 the sources carry ``last_hidden_TH``.
    ``documents_per_pass`` bounds the memory of a pass; none: one pass. ``autocast``: bf16 products.
    """
    size = network.geometry.block_size
    groups = split_sources(sources, anchors=max(1, ROWS_PER_PASS // size), documents=documents_per_pass)
    passes = [assemble(group, block_size=size) for group in groups]
    found = [blocks for blocks in passes if blocks is not None]
    weight = float(sum(total_weight(blocks.valid_NM, decay=decay) for blocks in found))
    total = 0.0
    for blocks in found:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            hidden = hidden_of(network, blocks, frozen)
            labels = frozen.rows(blocks.labels_NM, blocks.valid_NM)
            terms = weighted_cross_entropy(
                hidden,
                frozen.head_RH,
                labels,
                blocks.valid_NM,
                decay=decay,
                teacher_NMH=blocks.teacher_NMH,
                soft_targets=soft_targets,
            )
        # Anchors are legal only if their first label is supervised, so a pass with blocks has weight.
        (terms.weighted_loss / max(weight, 1e-9)).backward()  # type: ignore[no-untyped-call]
        total += float(terms.weighted_loss.detach())
    return StepSums(
        weighted_loss=total,
        weight=weight,
        blocks=sum(b.visible_N.numel() for b in found),
        labels=sum(int(b.valid_NM.sum()) for b in found),
        context_rows=sum(b.context_positions_S.numel() for b in found),
        documents_without_anchor=sum(s.anchors.numel() == 0 for s in sources),
    )
