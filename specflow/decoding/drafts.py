"""What the requests of a round propose, each a chain or a tree, as the rows of one pass of the target.

Legend: B requests, R rows, V vocabulary. Row 0 is the anchor; slot i of a tree is row i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.decoding.chooser import Chooser
from specflow.decoding.tree_verification import walk_greedy, walk_sampled
from specflow.decoding.trees import Tree
from specflow.decoding.verification import verify_chain
from specflow.drafters.base import Proposal

Draft = Proposal | Tree
"""A tree; or a chain, of drawn proposals or of certain ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The drafts of all requests with the same number of rows; those behind a draft's own follow the prefix alone."""

    ids_BR: Tensor
    parents_BR: Tensor


def tokens_of(draft: Draft) -> list[int]:
    """Of every row but the anchor's."""
    return list(draft.tokens) if isinstance(draft, Tree) else draft.tokens_m.tolist()


def longest_path(draft: Draft) -> int:
    """Tokens of the longest path."""
    return max(draft.depths) if isinstance(draft, Tree) else len(draft.tokens_m)


def rows_of(anchors: Sequence[int], drafts: Sequence[Draft]) -> Rows:
    rows = 1 + max(len(tokens_of(draft)) for draft in drafts)
    ids, parents = [], []
    for anchor, draft in zip(anchors, drafts, strict=True):
        tokens = tokens_of(draft)
        follows = draft.parents if isinstance(draft, Tree) else range(len(tokens))
        padding = rows - 1 - len(tokens)
        ids.append([anchor, *tokens, *[anchor] * padding])
        parents.append([-1, *follows, *[-1] * padding])
    return Rows(ids_BR=torch.tensor(ids), parents_BR=torch.tensor(parents))


def verify_drafts(
    logits_BRV: Tensor, drafts: Sequence[Draft], choosers: Sequence[Chooser]
) -> list[tuple[list[int], int]]:
    """``(accepted rows from the top down, next token)`` of every request, each by its own sampling."""
    # One transfer for all greedy requests; the argmax of the others is not looked at.
    greedy = any(chooser.sampling.argmax for chooser in choosers)
    argmax_BR: list[list[int]] = logits_BRV.argmax(dim=-1).tolist() if greedy else [[] for _ in choosers]
    return [
        _verify(logits_BRV[b], argmax_BR[b], draft, chooser)
        for b, (draft, chooser) in enumerate(zip(drafts, choosers, strict=True))
    ]


def _verify(logits_RV: Tensor, argmax_R: list[int], draft: Draft, chooser: Chooser) -> tuple[list[int], int]:
    if chooser.sampling.argmax:
        return walk_greedy(argmax_R, draft if isinstance(draft, Tree) else Tree.chain(tokens_of(draft)))
    if isinstance(draft, Tree):
        return walk_sampled(logits_RV, draft, chooser)
    accepted, token = verify_chain(logits_RV, draft, chooser)
    return list(range(1, accepted + 1)), token
