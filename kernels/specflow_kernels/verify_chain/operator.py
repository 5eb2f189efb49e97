"""Examples and cost of chain verification."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specflow_kernels.cost import Cost
from specflow_kernels.operator import Case, Operator
from specflow_kernels.peers import Peer
from specflow_kernels.verify_chain import explain, verify_chain
from specflow_kernels.verify_chain.flashinfer_sampling import chain_speculative_sampling
from specflow_kernels.verify_chain.reference import verify_chain_reference


def make(
    device: torch.device, *, batch: int, proposals: int, vocabulary: int, drawn: bool, greedy: bool
) -> dict[str, Any]:
    rows = proposals + 1
    logits = torch.randn(batch, rows, vocabulary, device=device)
    q = torch.randn(batch, proposals, vocabulary, device=device).softmax(dim=-1) if drawn else None
    return {
        "draft_BM": torch.randint(vocabulary, (batch, proposals), device=device),
        "target_BRV": logits.softmax(dim=-1),
        "greedy_B": torch.full((batch,), greedy, device=device),
        "coins_BR": torch.rand(batch, rows, device=device),
        "q_BMV": q,
    }


def cost(
    draft_BM: Tensor, target_BRV: Tensor, *, greedy_B: Tensor, q_BMV: Tensor | None = None, **_: Any
) -> Cost:  # fmt: skip
    """A greedy request reads all its rows; a sampled one a number per proposal and one row, with that of q."""
    batch, rows, vocabulary = target_BRV.shape
    greedy = int(greedy_B.sum())
    width = target_BRV.element_size()
    read = greedy * rows * vocabulary + (batch - greedy) * vocabulary * (1 if q_BMV is None else 2)
    return Cost(bytes=read * width + draft_BM.numel() * 8 + batch * 16, operations=3 * read)


def kernel(**inputs: Any) -> tuple[Tensor, Tensor]:
    from specflow_kernels.verify_chain.launching import verify_chain_triton

    return verify_chain_triton(**inputs)


OPERATOR = Operator(
    name="verify_chain",
    summary="greedy and rejection verification of chains, each request by its own sampling",
    public=verify_chain,
    kernel=kernel,
    reference=verify_chain_reference,
    explain=explain,
    cost=cost,
    peers={
        "FlashInfer": Peer(
            package="flashinfer-python", computes="the same for drawn proposals", prepare=chain_speculative_sampling
        )
    },
    cases=(
        Case(
            name="SmolLM2-135M, greedy",
            make=lambda device: make(
                device, batch=23, proposals=5, vocabulary=49152, drawn=False, greedy=True
            ),
        ),
        Case(
            name="8B, sampled",
            make=lambda device: make(device, batch=32, proposals=7, vocabulary=151936, drawn=True, greedy=False),
        ),
    ),
)  # fmt: skip
