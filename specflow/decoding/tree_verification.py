"""Which path of a tree the target accepts, and the token it adds (METHODS 1, ``SGLANG_CONTRACT`` G at thresholds 1).

The target's own distribution decides among siblings: one number per depth, and the first sibling stays at which the
siblings' probabilities add up to more than it. So each stays with its probability, whatever the drafter thought of it,
and exactly one or none does. Where none does, the next token is drawn from what is left without them. A tree of one
branch is a chain of certain proposals, with the same random numbers. Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specflow.decoding.chooser import Chooser
from specflow.decoding.distribution import distribution
from specflow.decoding.trees import Tree


def walk_greedy(argmax_R: Sequence[int], tree: Tree) -> tuple[list[int], int]:
    """``(slots of the accepted path, next token)`` by the target's argmax of every slot."""
    path, slot = list[int](), 0
    while True:
        token = argmax_R[slot]
        slot = next((child for child in tree.children[slot] if tree.tokens[child - 1] == token), 0)
        if not slot:
            return path, token
        path.append(slot)


def walk_sampled(logits_RV: Tensor, tree: Tree, chooser: Chooser) -> tuple[list[int], int]:
    """The same for a request that samples or has penalties, each slot judged after the tokens of its path."""
    path, tokens, slot, begin = list[int](), list[int](), 0, chooser.length
    while True:
        p_V = distribution(logits_RV[slot], chooser.sampling, chooser.after(tokens))
        siblings = tree.children[slot]
        proposed = [tree.tokens[child - 1] for child in siblings]
        chosen = _among(p_V, proposed, chooser, place=(begin, len(path)))
        if chosen is None:
            return path, chooser.draw_target(without(p_V, proposed), index=begin + len(path))
        slot = siblings[chosen]
        path.append(slot)
        tokens.append(proposed[chosen])


def _among(p_V: Tensor, proposed: Sequence[int], chooser: Chooser, *, place: tuple[int, int]) -> int | None:
    if not proposed:
        return None
    coin, mass = chooser.random.coin(place=place), 0.0
    for i, p in enumerate(p_V[list(proposed)].tolist()):
        mass += p
        if coin < mass:
            return i
    return None


def without(p_V: Tensor, rejected: Sequence[int]) -> Tensor:
    """``[V]`` the distribution given that it is none of ``rejected``; p itself where rounding leaves nothing."""
    if not rejected:
        return p_V
    rest_V = p_V.clone()
    rest_V[list(rejected)] = 0.0
    mass = rest_V.sum()
    return p_V if float(mass) == 0.0 else torch.div(rest_V, mass)
