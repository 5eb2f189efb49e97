"""Attention of EAGLE-3's training-time test at one depth (METHODS 4).

Legend: T rows of all documents, A query heads, G key heads, C depths before this one but for the first, d head size.
"""

from __future__ import annotations

from torch import Tensor

from specflow_kernels.choice import Choice, choose
from specflow_kernels.ttt_attention.reference import ttt_attention_reference

LARGEST_HEAD = 256


def ttt_attention(
    query_TAd: Tensor,
    key_TGd: Tensor,
    value_TGd: Tensor,
    chain_key_CTGd: Tensor,
    chain_value_CTGd: Tensor,
    *,
    first_T: Tensor,
) -> Tensor:
    """``[T, A, d]``: row t sees depth-0 keys ``first_T[t] <= s <= t`` and its own keys ``chain[:, t]``, no other.

    ``first_T``: the first row of each row's document; documents lie one behind the other, so it never falls. The keys
    carry their rotary positions already. At depth 0, C is 0. Differentiable once on CUDA. Raises ``ValueError`` if
    shapes do not fit.
    """
    _check(query_TAd, key_TGd, value_TGd, chain_key_CTGd, chain_value_CTGd, first_T)
    given = (query_TAd, key_TGd, value_TGd, chain_key_CTGd, chain_value_CTGd)
    run = ttt_attention_reference
    if explain(*given, first_T=first_T).kernel:
        from specflow_kernels.ttt_attention.differentiable import ttt_attention_triton

        run = ttt_attention_triton
    return run(*given, first_T=first_T)


def explain(
    query_TAd: Tensor,
    key_TGd: Tensor,
    value_TGd: Tensor,
    chain_key_CTGd: Tensor,
    chain_value_CTGd: Tensor,
    *,
    first_T: Tensor,
) -> Choice:
    """What :func:`ttt_attention` would run for these tensors, and why."""
    size = query_TAd.shape[-1]
    return choose(
        (query_TAd, key_TGd, value_TGd, chain_key_CTGd, chain_value_CTGd, first_T),
        refusals=((size > LARGEST_HEAD, f"head size {size}; the kernel's tiles hold up to {LARGEST_HEAD}"),),
    )


def _check(query: Tensor, key: Tensor, value: Tensor, chain_key: Tensor, chain_value: Tensor, first: Tensor) -> None:
    tokens, heads, size = query.shape
    groups, depths = key.shape[1], chain_key.shape[0]
    problems = [
        f"{name} {tuple(tensor.shape)}, expected {wanted}"
        for name, tensor, wanted in (
            ("key", key, (tokens, groups, size)),
            ("value", value, (tokens, groups, size)),
            ("chain_key", chain_key, (depths, tokens, groups, size)),
            ("chain_value", chain_value, (depths, tokens, groups, size)),
            ("first", first, (tokens,)),
        )
        if tuple(tensor.shape) != wanted
    ]
    if heads % groups:
        problems.append(f"{heads} query heads for {groups} key heads, expected a multiple")
    if problems:
        raise ValueError(f"query {tuple(query.shape)} does not fit: {'; '.join(problems)}")
