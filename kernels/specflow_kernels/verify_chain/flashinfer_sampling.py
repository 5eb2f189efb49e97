"""FlashInfer's verification of chains by rejection, to be measured against. It draws its own random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def chain_speculative_sampling(inputs: dict[str, Any]) -> Callable[..., tuple[Tensor, ...]]:
    """Raises ``ValueError`` for what it has no form of: certain proposals, greedy requests, fewer rows."""
    from flashinfer.sampling import chain_speculative_sampling as verify

    if inputs.get("q_BMV") is None or bool(inputs["greedy_B"].any()) or inputs.get("judged_B") is not None:
        raise ValueError("takes drawn proposals of sampled requests, all rows judged")
    draft = inputs["draft_BM"].int()  # its type of ids; once, not in the time that is measured

    def run(*, target_BRV: Tensor, q_BMV: Tensor, **_: Any) -> tuple[Tensor, ...]:
        out: tuple[Tensor, ...] = verify(q_BMV, draft, target_BRV)
        return out

    return run
