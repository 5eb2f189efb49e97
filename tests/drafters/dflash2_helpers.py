"""Small DFlash 2 drafters with every value drawn from a seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.proposer import DFlash2Proposer
from tests.drafters.helpers import Doc, geometry, tables

SMALL = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 4}


def geometry2(**changes: Any) -> DFlash2Geometry:
    return DFlash2Geometry.from_dict({**geometry().to_dict(), **SMALL, **changes})


def network2(seed: int = 0, **changes: Any) -> DFlash2Network:
    """Random weights, convolutions and selector included, wide enough that every input matters."""
    torch.manual_seed(seed)
    net = DFlash2Network(geometry2(**changes))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            elif parameter.ndim == 3:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "codebook" in name:
                parameter.copy_(torch.randn_like(parameter))
            elif "kernel_projection" in name:
                parameter.copy_(torch.randn_like(parameter) * (0.3 / parameter.shape[1] ** 0.5))
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.2 / parameter.shape[1] ** 0.5))
    return net


def proposer2(net: DFlash2Network, doc: Doc | None = None, anchor: int = 0, precision: str = "fp32") -> DFlash2Proposer:
    """With the rows of ``doc`` before ``anchor`` committed, and room for more."""
    embedding, head = tables()
    made = DFlash2Proposer(net, embed=lambda i: embedding[i], head=lambda h: h.float() @ head.T, precision=precision)
    made.reset(60)
    if doc is not None:
        made.extend(committed_rows(doc, 0, anchor))
    return made


def committed_rows(doc: Doc, start: int, stop: int) -> Committed:
    ids = torch.cat((doc.ids, doc.ids.new_zeros(1)))
    return Committed(features_TKH=doc.features[start:stop], next_ids_T=ids[start + 1 : stop + 1])


def reference_lattice(net: DFlash2Network, hidden_mH: Tensor, anchor: int) -> tuple[list[list[int]], Any]:
    """Candidates and ``score(i, previous, token)`` in float64, from METHODS 7, one number at a time."""
    _, head = tables()
    g, weights = net.geometry, {k: v.double() for k, v in net.state_dict().items()}
    logits = hidden_mH.double() @ head.double().T
    ranked = [sorted(range(g.vocab_size), key=lambda v, row=row: (-float(row[v]), v)) for row in logits]
    candidates = [sorted(row[: g.selector_top_k]) for row in ranked]
    projected = hidden_mH.double() @ weights["candidate_selector.hidden_projection.weight"].T

    def score(i: int, previous: int, token: int) -> float:
        own = float(logits[i, token]) * g.output_multiplier
        if g.final_logit_softcapping:
            own = g.final_logit_softcapping * torch.tensor(own / g.final_logit_softcapping).tanh().item()
        left = weights["candidate_selector.predecessor_codebook"][previous] * projected[i]
        return own + float(left @ weights["candidate_selector.successor_codebook"][token])

    return candidates, score
