"""From logits to the distribution that a token is drawn from: the only such function of the engine.

Order: presence and frequency penalties, repetition penalty, temperature, softmax, top-k, top-p, min-p; every filter
sees what the one before it left, renormalised. Equal probabilities are ordered by id, so a filter keeps an exact
number of tokens. Legend: V vocabulary, S tokens that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specflow.decoding.sampling import Sampling


def distribution(logits_V: Tensor, sampling: Sampling, emitted: Mapping[int, int]) -> Tensor:
    """``[V]`` float64 probabilities of the next token after a text that holds each token ``emitted[token]`` times.

    At temperature 0 all mass is on the argmax. Raises ``ValueError`` if no logit is finite or one is not a number.
    """
    logits_V = penalised(logits_V, sampling, emitted)
    highest = float(logits_V.max())
    if not abs(highest) < float("inf"):  # also where it is not a number
        raise ValueError(f"logits: expected a finite maximum, found {highest}")
    probabilities_V = torch.zeros_like(logits_V)
    if sampling.temperature == 0.0:
        probabilities_V[logits_V.argmax()] = 1.0
        return probabilities_V
    weights_V = ((logits_V - highest) / sampling.temperature).exp()
    kept_S = _kept(weights_V, sampling)
    if kept_S is None:
        return weights_V / weights_V.sum()
    weights_S = weights_V[kept_S]
    probabilities_V[kept_S] = weights_S / weights_S.sum()
    return probabilities_V


def penalised(logits_V: Tensor, sampling: Sampling, emitted: Mapping[int, int]) -> Tensor:
    """``[V]`` float64 logits after the penalties; a copy."""
    logits_V = logits_V.to(torch.float64, copy=True)
    if not sampling.penalised or not emitted:
        return logits_V
    ids = torch.tensor(list(emitted), device=logits_V.device)
    counts = torch.tensor(list(emitted.values()), dtype=torch.float64, device=logits_V.device)
    there = logits_V[ids] - sampling.presence_penalty - sampling.frequency_penalty * counts
    factor = sampling.repetition_penalty
    logits_V[ids] = torch.where(there < 0, there * factor, there / factor)
    return logits_V


def _kept(weights_V: Tensor, sampling: Sampling) -> Tensor | None:
    """Ids that pass every filter; none: all of them."""
    kept_S = None
    if sampling.top_k is not None and sampling.top_k < weights_V.numel():
        kept_S = _largest(weights_V, sampling.top_k)
    if sampling.top_p < 1.0:
        ids_S = torch.arange(weights_V.numel(), device=weights_V.device) if kept_S is None else kept_S
        sorted_S, order_S = weights_V[ids_S].sort(descending=True, stable=True)
        mass_S = sorted_S.cumsum(0)
        # A token stays while those before it have less than top_p, so that the one that reaches it stays too.
        kept_S = ids_S[order_S[mass_S - sorted_S < sampling.top_p * mass_S[-1]]]
    if sampling.min_p > 0.0:
        least = sampling.min_p * float(weights_V.max())
        kept_S = (weights_V >= least).nonzero().squeeze(1) if kept_S is None else kept_S[weights_V[kept_S] >= least]
    return kept_S


def _largest(weights_V: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` largest; of equal ones the lowest ids."""
    threshold = weights_V.topk(count).values[-1]
    above = (weights_V > threshold).nonzero().squeeze(1)
    equal = (weights_V == threshold).nonzero().squeeze(1)
    return torch.cat((above, equal[: count - above.numel()])).sort().values
