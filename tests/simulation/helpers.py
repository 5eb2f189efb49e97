"""Rounds and costs with known figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from specflow.costs.tables import AdditiveTable
from specflow.simulation.costs import RoundCost
from specflow.simulation.predict import Evidence
from specflow.simulation.traces import Traces, traces_of

TABLE = AdditiveTable(
    bias_seconds=0.020, requests=(1, 512), alpha_seconds=(0.0, 0.0511), rows=(1, 8, 4096),
    theta_seconds=(0.0, 0.0007, 1.5),
)  # fmt: skip
"""Few rows cost next to nothing, many cost 0.37 ms each, a request 0.1 ms."""


def random_requests(
    *, requests: int = 40, proposals: int = 4, confident: bool = True, seed: int = 0
) -> list[list[dict[str, Any]]]:
    """Rounds of easy and of hard text; the confidence is true."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(requests):
        rounds = []
        for _ in range(int(random.integers(5, 25))):
            logits = random.choice([3.0, -1.0]) + random.normal(0, 0.5, proposals)
            accepted = int(np.cumprod(random.random(proposals) < 1 / (1 + np.exp(-logits))).sum())
            rounds.append(
                {
                    "proposed": proposals,
                    "accepted": accepted,
                    "delivered": accepted + 1,
                    "confidence": logits.tolist() if confident else None,
                }
            )
        found.append(rounds)
    return found


def evidence(*, name: str = "d", beside: float = 0.001, prefill: float = 0.0, **changes: Any) -> Evidence:
    traces: Traces = traces_of(random_requests(**changes))
    return Evidence(
        name=name,
        traces=traces,
        cost=RoundCost(table=TABLE, seconds_per_request=beside),
        plain=RoundCost(table=TABLE),
        prefill_seconds=prefill,
    )
