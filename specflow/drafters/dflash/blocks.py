"""Documents and anchors become the tensors of one forward pass.

Legend: N blocks of all documents, B rows of a block, S context rows of all documents, M proposals of a block: B - 1
where the anchor row predicts nothing, B where it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.drafters.dflash.attention import Span
from specflow.drafters.training import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    anchor_ids_N: Tensor
    positions_NB: Tensor
    """``anchor + 0..B-1``, positions in the document, never reset."""
    labels_NM: Tensor
    """The token at each proposal's own position; 0 where there is none."""
    valid_NM: Tensor
    """Supervised, and every earlier label of the block too."""
    visible_N: Tensor
    spans: tuple[Span, ...]
    context_positions_S: Tensor
    features: tuple[Tensor, ...]
    """``[rows, K, H]`` of each span as stored: context rows up to the last anchor, nothing later is visible."""
    last_hidden: tuple[Tensor, ...]
    """``[T, H]`` of each span's document, as stored; empty if a source has none."""

    @property
    def features_SKH(self) -> Tensor:
        """Fp32, made anew at every access: batches that wait for their turn hold no copy."""
        first = self.features[0]
        out = first.new_empty((self.spans[-1].context[1], *first.shape[1:]), dtype=torch.float32)
        for rows, span in zip(self.features, self.spans, strict=True):
            out[slice(*span.context)] = rows
        return out

    @property
    def teacher_NMH(self) -> Tensor | None:
        """The target's last hidden state at the row that predicts each label, fp32, made anew at every access.

        Label j of a block is predicted by the row ``anchor + j - 1``. None if a source has no last hidden states.
        """
        if not self.last_hidden:
            return None
        rows_NM = self.positions_NB[:, : self.labels_NM.shape[1]]
        found = [
            hidden_TH[rows_NM[slice(*span.blocks)].clamp(max=hidden_TH.shape[0] - 1)].float()
            for hidden_TH, span in zip(self.last_hidden, self.spans, strict=True)
        ]
        return torch.cat(found)


def labels_and_validity(
    token_ids_T: Tensor, supervised_T: Tensor, anchors_N: Tensor, *, block_size: int
) -> tuple[Tensor, Tensor]:
    """Labels ``[N, B-1]`` at ``anchor + 1..B-1`` and whether each is supervised without a gap from the anchor."""
    wanted = anchors_N.unsqueeze(1) + torch.arange(1, block_size)
    inside = wanted < token_ids_T.numel()
    index = wanted.clamp(max=token_ids_T.numel() - 1)
    labels = token_ids_T[index].masked_fill(~inside, 0)
    valid = (supervised_T[index] & inside).long().cumprod(dim=1).bool()
    return labels, valid


def assemble(sources: Sequence[Source], *, block_size: int, proposals: int | None = None) -> Blocks | None:
    """All blocks of ``sources``; none if no document has an anchor.

    ``proposals``: labels of a block, from the token after the anchor on; none: ``block_size - 1``.
    """
    labelled = block_size if proposals is None else proposals + 1
    spans, labels, valid, anchors, ids, positions = [], [], [], [], [], []
    used = [source for source in sources if source.anchors.numel()]
    context_end = block_end = 0
    for source in used:
        count = source.anchors.numel()
        length = int(source.anchors.max())
        if length > source.features_TKH.shape[0]:
            raise ValueError(
                f"an anchor at {length} reads the {length} rows before it, the document has features of "
                f"{source.features_TKH.shape[0]}: rows after the last usable one are not stored"
            )
        spans.append(Span(context=(context_end, context_end + length), blocks=(block_end, block_end + count)))
        context_end, block_end = context_end + length, block_end + count
        some_labels, some_valid = labels_and_validity(
            source.token_ids_T, source.supervised_T, source.anchors, block_size=labelled
        )
        labels.append(some_labels)
        valid.append(some_valid)
        anchors.append(source.anchors)
        ids.append(source.token_ids_T[source.anchors])
        positions.append(torch.arange(length))
    if not spans:
        return None
    visible = torch.cat(anchors)
    hidden = [source.last_hidden_TH for source in used if source.last_hidden_TH is not None]
    return Blocks(
        anchor_ids_N=torch.cat(ids),
        positions_NB=visible.unsqueeze(1) + torch.arange(block_size),
        labels_NM=torch.cat(labels),
        valid_NM=torch.cat(valid),
        visible_N=visible,
        spans=tuple(spans),
        context_positions_S=torch.cat(positions),
        features=tuple(source.features_TKH[: int(source.anchors.max())] for source in used),
        last_hidden=tuple(hidden) if len(hidden) == len(used) else (),
    )


def block_embeddings(anchor_embeds_NH: Tensor, mask_embed_H: Tensor, *, block_size: int) -> Tensor:
    """``[N, B, H]``: the anchor's embedding, then the mask's."""
    masks = mask_embed_H.expand(anchor_embeds_NH.shape[0], block_size - 1, -1)
    return torch.cat((anchor_embeds_NH.unsqueeze(1), masks), dim=1)
