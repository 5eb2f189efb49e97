"""Verification of as many rows as each request was granted, and of no other row.

Chains are cut to what was granted before the target sees them; what it says of them is verified as ever. Where a cut
chain is accepted whole, the next token is the target's own at the cut, so nothing is skewed.
Legend: B requests, N rows of all requests one after another, V vocabulary, m proposals of the longest chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from specflow_kernels.accept_greedy import accept_greedy
from torch import Tensor

from specflow.decoding.chooser import Chooser
from specflow.decoding.verification import verify_chain, verify_chains
from specflow.drafters.base import Proposal
from specflow.targets.base import TargetOutput
from specflow.targets.cache import Cache
from specflow.targets.target import Target

NOTHING = Proposal(tokens_m=torch.empty(0, dtype=torch.int64))
"""Of a request that is given its next token by the target alone."""
NO_PROPOSAL = -1
"""Fills chains up; no token has this id."""


def first_of(chain: Proposal, count: int) -> Proposal:
    """Its first ``count`` proposals."""
    if count >= len(chain.tokens_m):
        return chain
    q_mV = None if chain.q_mV is None else chain.q_mV[:count]
    return Proposal(tokens_m=chain.tokens_m[:count], q_mV=q_mV)


def verify_granted(
    target: Target,
    cache: Cache,
    anchors: Sequence[int],
    chains: Sequence[Proposal],
    choosers: Sequence[Chooser],
    *,
    layer_ids: tuple[int, ...],
) -> tuple[list[TargetOutput], list[tuple[int, int]]]:
    """One pass over anchors and chains of any lengths, committed as far as accepted.

    Each request's part of the pass, ``[1, rows, ..]``, and its ``(accepted, next token)``.
    """
    counts = [len(chain.tokens_m) + 1 for chain in chains]
    ids = [torch.cat((torch.tensor([anchor]), c.tokens_m)) for anchor, c in zip(anchors, chains, strict=True)]
    if len(set(counts)) == 1:
        output = target.forward(torch.stack(ids), cache, layer_ids=layer_ids)
        accepted = verify_chains(target.head(output.last_hidden_BTH), chains, choosers)
        parts = [_part(output, b, slice(None)) for b in range(len(chains))]
    else:
        output = target.forward(torch.cat(ids).unsqueeze(0), cache, layer_ids=layer_ids, rows=counts)
        ends = torch.tensor(counts).cumsum(0).tolist()
        spans = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
        accepted = _verify_spans(target.head(output.last_hidden_BTH)[0], spans, chains, choosers)
        parts = [_part(output, 0, span) for span in spans]
    cache.commit([count + 1 for count, _ in accepted])
    return parts, accepted


def _verify_spans(
    logits_NV: Tensor, spans: Sequence[slice], chains: Sequence[Proposal], choosers: Sequence[Chooser]
) -> list[tuple[int, int]]:
    greedy = [b for b, chooser in enumerate(choosers) if chooser.sampling.argmax]
    found = dict(zip(greedy, _greedy(logits_NV, spans, chains, greedy), strict=True)) if greedy else {}
    return [
        found[b] if b in found else verify_chain(logits_NV[spans[b]], chain, choosers[b])
        for b, chain in enumerate(chains)
    ]


def _greedy(
    logits_NV: Tensor, spans: Sequence[slice], chains: Sequence[Proposal], greedy: Sequence[int]
) -> list[tuple[int, int]]:
    """All of them at once, filled up with proposals that are never accepted."""
    longest = max(len(chains[b].tokens_m) for b in greedy)
    choices_N = logits_NV.argmax(dim=-1)
    draft_Gm = torch.full((len(greedy), longest), NO_PROPOSAL, device=choices_N.device)
    choice_GR = choices_N.new_zeros(len(greedy), longest + 1)
    for g, b in enumerate(greedy):
        draft_Gm[g, : len(chains[b].tokens_m)] = chains[b].tokens_m
        choice_GR[g, : spans[b].stop - spans[b].start] = choices_N[spans[b]]
    accepted, following = torch.stack(accept_greedy(draft_Gm, choice_GR)).tolist()
    return list(zip(accepted, following, strict=True))


def _part(output: TargetOutput, request: int, rows: slice) -> TargetOutput:
    features = output.features_BTKH
    return TargetOutput(
        last_hidden_BTH=output.last_hidden_BTH[request : request + 1, rows],
        features_BTKH=None if features is None else features[request : request + 1, rows],
    )
