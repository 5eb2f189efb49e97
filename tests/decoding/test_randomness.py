"""Random numbers: right frequencies, independent over purposes and places, and fixed for ever.

Chi-square tests with fixed seeds. Limits are quantiles of 1e-6: a correct generator fails one of them with that
probability over the choice of seeds, and never again once it passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from specflow.decoding.randomness import Purpose, RequestRandom
from specflow.decoding.sampling import Sampling
from specflow.decoding.speculative import decode_speculative
from tests.decoding.table_target import TableProposer, TableTarget
from tests.decoding.test_exact_chains import PROMPT, reference

torch.set_num_threads(1)
ALARM = 1e-6
DRAWS = 4000
TEXTS = 1200
VOCAB = 3


pytestmark = pytest.mark.usefixtures("remembered_distributions")


def statistic(counts: Counter[Any], expected: dict[Any, float]) -> tuple[float, float]:
    """Chi-square and its limit; outcomes expected fewer than five times are taken together."""
    total, rare = sum(counts.values()), [k for k, p in expected.items() if p * sum(counts.values()) < 5]
    cells = [(counts[k], p * total) for k, p in expected.items() if k not in rare]
    if rare:
        cells.append((sum(counts[k] for k in rare), sum(expected[k] for k in rare) * total))
    value = sum((found - wanted) ** 2 / wanted for found, wanted in cells)
    impossible = set(counts) - set(expected)
    return (float("inf") if impossible else value), float(chi2.isf(ALARM, len(cells) - 1))


def test_choices_follow_the_weights() -> None:
    weights = torch.tensor([3.0, 0.0, 1.0, 6.0, 2.0])
    counts = Counter(
        RequestRandom(seed).choose(weights, purpose=Purpose.TARGET, place=(place,))
        for seed in range(200)
        for place in range(20)
    )
    value, limit = statistic(counts, {0: 3 / 12, 2: 1 / 12, 3: 6 / 12, 4: 2 / 12})
    assert value < limit


def test_acceptance_has_its_probability() -> None:
    kept = Counter(RequestRandom(seed).accepts(p=0.3, q=0.5, place=(seed % 7, 1)) for seed in range(DRAWS))
    value, limit = statistic(kept, {True: 0.6, False: 0.4})
    assert value < limit
    assert all(RequestRandom(seed).accepts(p=0.5, q=0.5, place=(0, 0)) for seed in range(200))
    assert not any(RequestRandom(seed).accepts(p=0.0, q=0.5, place=(0, 0)) for seed in range(200))


def test_numbers_are_fixed_and_differ_by_purpose_and_place() -> None:
    numbers = RequestRandom(5)
    drawn = {
        (purpose, place): tuple(numbers._uniform(purpose, place, 2).tolist())
        for purpose in Purpose
        for place in ((0,), (1,), (0, 1), (1, 0), (11,), (1, 1))
    }
    assert len(set(drawn.values())) == len(drawn)
    assert drawn[Purpose.TARGET, (1,)] == tuple(RequestRandom(5)._uniform(Purpose.TARGET, (1,), 9)[:2].tolist())
    # Another value here means that the same seeds give other texts than before.
    assert drawn[Purpose.TARGET, (0,)] == (0.9888313620994071, 0.6889296037603105)


def test_scaled_weights_choose_the_same() -> None:
    weights = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for seed in range(50):
        numbers = RequestRandom(seed)
        both = [numbers.choose(w, purpose=Purpose.TARGET, place=(3,)) for w in (weights, weights * 7 * (1 + 1e-12))]
        assert both[0] == both[1]


def outputs(sampling: dict[str, float], count: int = TEXTS) -> Counter[tuple[int, ...]]:
    target: Any = TableTarget(VOCAB)
    proposer = TableProposer(target, num_proposals=2)
    return Counter(
        tuple(
            decode_speculative(
                target, proposer, PROMPT, max_new_tokens=3, sampling=Sampling(**sampling, seed=seed)
            ).tokens  # type: ignore[arg-type]
        )
        for seed in range(count)
    )


MIXED = {
    "certain": {"temperature": 1.0, "top_p": 0.95},
    "drawn": {"temperature": 1.3, "draft_temperature": 1.0, "frequency_penalty": 0.5, "min_p": 0.02},
}


@pytest.mark.parametrize("name", MIXED)
def test_speculative_outputs_over_many_seeds(name: str) -> None:
    """The rule is proven by enumeration; this adds that the engine's numbers are independent where they must be."""
    value, limit = statistic(outputs(MIXED[name]), reference(TableTarget(VOCAB), Sampling(**MIXED[name])))  # type: ignore[arg-type]
    assert value < limit


def _one_number_for_every_purpose(uniform: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda self, purpose, place, count: uniform(self, Purpose.TARGET, (0,), count)


def _one_number_for_every_place(uniform: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda self, purpose, place, count: uniform(self, purpose, (0,), count)


@pytest.mark.parametrize("plant", [_one_number_for_every_purpose, _one_number_for_every_place])
def test_dependent_numbers_are_seen(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]
) -> None:
    monkeypatch.setattr(RequestRandom, "_uniform", plant(RequestRandom._uniform))
    expected = reference(TableTarget(VOCAB), Sampling(**MIXED["drawn"]))  # type: ignore[arg-type]
    value, limit = statistic(outputs(MIXED["drawn"], 600), expected)
    assert value > limit
