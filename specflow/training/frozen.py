"""The frozen ends of the target: embeddings, head, and the list of tokens the training softmax runs over.

Legend: V vocabulary, R rows of the restricted head, M rows to judge, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specflow.drafters.target_weights import TargetWeights
from specflow.drafters.training import Correction
from specflow.training.data import Documents

SAFETY = 1e-2
"""Logit gap beyond which the restricted product alone may reject; far above rounding, below any real gap."""


class FrozenEnds:
    """Embedding and head as training needs them; nothing here has a gradient. A host for proposers too."""

    precision = "fp32"

    def __init__(
        self, embedding_VH: Tensor, head_VH: Tensor, *, softmax_tokens: Tensor, embedding_scale: float = 1.0
    ) -> None:
        self._embedding_VH, self._scale = embedding_VH, embedding_scale
        self._head_VH = head_VH.float()
        self.softmax_tokens = softmax_tokens
        """Increasing token ids, ``[R]``."""
        whole = softmax_tokens.numel() == head_VH.shape[0]
        self.head_RH = self._head_VH if whole else self._head_VH[softmax_tokens].contiguous()
        self._row_of_token = torch.full((head_VH.shape[0],), -1, dtype=torch.int64)
        self._row_of_token[softmax_tokens] = torch.arange(softmax_tokens.numel())

    def to(self, device: torch.device) -> FrozenEnds:
        """Move every table there."""
        for name in ("_embedding_VH", "_head_VH", "head_RH", "_row_of_token", "softmax_tokens"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    @property
    def bytes(self) -> int:
        """Memory of the tables."""
        tables = {id(t): t for t in (self._embedding_VH, self._head_VH, self.head_RH)}
        return sum(t.numel() * t.element_size() for t in tables.values())

    @classmethod
    def of_target(cls, target: TargetWeights, *, softmax_tokens: Tensor) -> FrozenEnds:
        return cls(
            target.embedding(), target.head(), softmax_tokens=softmax_tokens, embedding_scale=target.embedding_scale
        )

    def embed(self, ids: Tensor) -> Tensor:
        """``[..., H]`` fp32."""
        return self._embedding_VH[ids].float() * self._scale

    def head(self, hidden: Tensor) -> Tensor:
        """``[..., V]`` fp32 logits over the whole vocabulary."""
        return hidden.float() @ self._head_VH.T

    def head_rows(self, ids: Tensor | None) -> Tensor:
        """``[n, H]`` fp32: the head's rows of these tokens; none: all of them, not copied."""
        return self._head_VH if ids is None else self._head_VH[ids]

    def rows(self, labels: Tensor, valid: Tensor) -> Tensor:
        """Labels as rows of ``head_RH``; raises ``ValueError`` if a valid label is outside the list."""
        rows = self._row_of_token[labels]
        missing = int(((rows < 0) & valid).sum())
        if missing:
            raise ValueError(f"{missing} supervised labels are outside the {self.head_RH.shape[0]} softmax tokens")
        return rows.clamp_min(0)

    def agrees(self, hidden_MH: Tensor, labels_M: Tensor, correction: Correction | None = None) -> Tensor:
        """``[M]`` bool: the most likely token of the whole vocabulary, lowest id on ties, is the label.

        ``correction`` is added to the logits.

        Rows that already lose against a token of the restricted list are settled by it, which is most of the
        wrong ones; the whole head judges the others.
        """
        hidden = hidden_MH.float()
        own = (hidden * self._head_VH[labels_M]).sum(dim=1)
        rivals_MR = hidden @ self.head_RH.T
        if correction:
            code, table = correction.code_Mr.float(), correction.table_Vr
            own += (code * table[labels_M]).sum(dim=1)
            whole = self.head_RH.shape == self._head_VH.shape
            rivals_MR += code @ (table if whole else table[self.softmax_tokens.to(table.device)]).T
        rivals = rivals_MR.amax(dim=1)
        open_rows = (rivals <= own + SAFETY).nonzero().squeeze(1)
        result = torch.zeros(labels_M.shape, dtype=torch.bool, device=labels_M.device)
        if open_rows.numel():
            logits = self.head(hidden[open_rows])
            if correction:
                logits += code[open_rows] @ table.T
            result[open_rows] = logits.argmax(dim=1) == labels_M[open_rows]
        return result


def choose_softmax_tokens(
    documents: Documents, positions: Sequence[int], *, vocab_size: int, wanted: int | None
) -> Tensor:
    """Increasing ids for the training softmax.

    All tokens of the training answers; then, up to ``wanted``, the most frequent other tokens of the documents,
    then the lowest ids. ``wanted`` none or at least the vocabulary: every token.
    """
    if wanted is None or wanted >= vocab_size:
        return torch.arange(vocab_size)
    answers = torch.zeros(vocab_size, dtype=torch.int64)
    everywhere = torch.zeros(vocab_size, dtype=torch.int64)
    for position in positions:
        document = documents.get(position)
        ids = document.token_ids_T
        everywhere += torch.bincount(ids, minlength=vocab_size)
        answers += torch.bincount(ids[document.supervised_T], minlength=vocab_size)
    # Stable sort: equal counts keep increasing ids.
    rank = torch.where(answers > 0, everywhere.max() + 1, everywhere).argsort(descending=True, stable=True)
    size = max(wanted, int((answers > 0).sum()))
    return rank[:size].sort().values
