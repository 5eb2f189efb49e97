"""With a scheduler decoding has exactly the target's distribution: all outputs enumerated, of one request and of two.

The counter-example, a budget from the confidence of the very round it is for, differs by more than a thousandth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specflow.config.scheduler import SchedulerMode, SchedulerParams
from specflow.costs.drafting import DraftCost
from specflow.costs.tables import RowTable
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.speculative import decode_speculative_batch
from specflow.scheduling.allocation import allocate
from specflow.scheduling.budget import host_budget
from specflow.scheduling.planner import Planner
from specflow.scheduling.scheduler import Scheduler
from tests.decoding.enumeration import Output, output_distribution, total_variation
from tests.decoding.table_target import ConfidentTableProposer, TableTarget
from tests.decoding.test_exact_chains import PROMPT, reference

VOCAB = 3
STEEP = RowTable(rows=(1, 2, 3, 4, 5, 6), rounds_per_second=(10.0, 8.0, 6.0, 5.0, 4.2, 3.9), max_rows=6)
DRAWN = Sampling(temperature=1.0, draft_temperature=1.0)


pytestmark = pytest.mark.usefixtures("remembered_distributions")


def scheduler(mode: SchedulerMode, *, cost: RowTable = STEEP, **changes: Any) -> Scheduler:
    params = SchedulerParams(mode=mode, **{"lag": 1, "evidence": 1, "explore": None, **changes})
    return Scheduler(params=params, num_proposals=2, cost=cost, drafting=DraftCost(per_request=0.01))


def outputs(
    monkeypatch: pytest.MonkeyPatch,
    made: Scheduler,
    sampling: list[Sampling],
    length: int,
    seen: list[Any] | None = None,
    *,
    sharp: float = 3.0,
) -> dict[Output, float]:
    """Of all requests side by side, one output after another."""
    target: Any = TableTarget(VOCAB)
    proposer = ConfidentTableProposer(target, num_proposals=2, sharp=sharp)

    def decode() -> Output:
        found = decode_speculative_batch(
            target, proposer, [PROMPT] * len(sampling), max_new_tokens=length, sampling=sampling,
            batch_size=len(sampling), scheduler=made,
        )  # fmt: skip
        if seen is not None:
            seen.extend(r for generation in found for r in generation.rounds)
        return tuple(token for generation in found for token in generation.tokens)

    return output_distribution(decode, monkeypatch)


def expected(sampling: list[Sampling], length: int) -> dict[Output, float]:
    found: dict[Output, float] = {(): 1.0}
    for own in sampling:
        known = reference(TableTarget(VOCAB), own, length)
        found = {(*a, *b): p * q for a, p in found.items() for b, q in known.items()}
    return found


@pytest.mark.parametrize("mode", ["off", "causal", "lagged"])
@pytest.mark.parametrize(
    ("sampling", "length"),
    [(DRAWN, 3), (Sampling(temperature=1.0, top_k=2), 5), (Sampling(temperature=0.8, frequency_penalty=0.7), 4)],
)
def test_one_request(monkeypatch: pytest.MonkeyPatch, mode: SchedulerMode, sampling: Sampling, length: int) -> None:
    rounds: list[Any] = []
    found = outputs(monkeypatch, scheduler(mode), [sampling], length, rounds)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert total_variation(found, expected([sampling], length)) < 1e-12
    assert (max(r.proposed - r.judged for r in rounds) > 0) == (mode != "off")


@pytest.mark.parametrize("mode", ["causal", "lagged"])
@pytest.mark.parametrize("asked", [[Sampling(temperature=1.3), Sampling(temperature=0.9)], [DRAWN, GREEDY]])
def test_requests_that_take_rows_from_each_other(
    monkeypatch: pytest.MonkeyPatch, mode: SchedulerMode, asked: list[Sampling]
) -> None:
    """The joint distribution is the product; a greedy request beside a sampled one stays the argmax."""
    rounds: list[Any] = []
    found = outputs(monkeypatch, scheduler(mode), asked, 3, rounds)
    assert total_variation(found, expected(asked, 3)) < 1e-12
    assert len({r.proposed - r.judged for r in rounds}) > 1


@pytest.mark.parametrize("mode", ["causal", "lagged"])
def test_two_that_draw_their_proposals(monkeypatch: pytest.MonkeyPatch, mode: SchedulerMode) -> None:
    found = outputs(monkeypatch, scheduler(mode), [DRAWN, DRAWN], 2)
    assert total_variation(found, expected([DRAWN, DRAWN], 2)) < 1e-12


@pytest.mark.parametrize("mode", ["causal", "lagged"])
def test_requests_that_do_not_always_draft(monkeypatch: pytest.MonkeyPatch, mode: SchedulerMode) -> None:
    rounds: list[Any] = []
    made, certain = scheduler(mode, explore=0.04), Sampling(temperature=1.0)
    found = outputs(monkeypatch, made, [certain], 5, rounds)
    assert total_variation(found, expected([certain], 5)) < 1e-12
    assert {r.proposed for r in rounds} == {0, 2}
    drawn = outputs(monkeypatch, made, [DRAWN], 3)
    assert total_variation(drawn, expected([DRAWN], 3)) < 1e-12


def test_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("causal", "lagged"):
        found = outputs(monkeypatch, scheduler(mode, buckets=(2, 4)), [DRAWN], 3)
        assert total_variation(found, expected([DRAWN], 3)) < 1e-12


def anticipating(self: Planner, slots: Any, survival_RM: Any) -> Any:
    """The counter-example: the best budget of this round's own confidence, later positions included."""
    assert self.cost is not None
    return allocate(survival_RM, host_budget(np.asarray(survival_RM), self.cost).positions, self.limits)


BUMPY = RowTable(rows=(1, 2, 3), rounds_per_second=(10.0, 6.0, 5.9), max_rows=3)
"""The second row alone is dear, the third next to nothing: two are worth while, or none."""


def test_looking_ahead_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scheduler("causal", cost=BUMPY)
    exact = outputs(monkeypatch, made, [DRAWN], 2, sharp=1.5)
    assert total_variation(exact, expected([DRAWN], 2)) < 1e-12
    monkeypatch.setattr(Planner, "plan", anticipating)
    assert total_variation(outputs(monkeypatch, made, [DRAWN], 2, sharp=1.5), expected([DRAWN], 2)) > 0.05
