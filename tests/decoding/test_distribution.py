"""The adjusted distribution against a slow one written from its definition; acceptance and residual in float64."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.decoding.chooser import residual
from specflow.decoding.distribution import distribution
from specflow.decoding.sampling import Sampling

torch.set_num_threads(1)
SMALL = st.integers(-6, 6).map(lambda n: n / 2)  # few values, so that ties are frequent


def samplings() -> st.SearchStrategy[Sampling]:
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        top_k=st.sampled_from([None, 1, 2, 3, 50]),
        top_p=st.sampled_from([1.0, 0.9, 0.55, 0.01]),
        min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
        presence_penalty=st.sampled_from([0.0, 0.7, -0.4]),
        frequency_penalty=st.sampled_from([0.0, 1.1]),
        repetition_penalty=st.sampled_from([1.0, 1.5, 0.6]),
    )


def slowly(logits: list[float], sampling: Sampling, text: list[int]) -> list[float]:
    """The definition, token by token."""
    scores = []
    for token, score in enumerate(logits):
        if token in text:
            score -= sampling.presence_penalty
            score -= sampling.frequency_penalty * text.count(token)
            score = score * sampling.repetition_penalty if score < 0 else score / sampling.repetition_penalty
        scores.append(score)
    ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if sampling.temperature == 0:
        return [float(token == ranked[0]) for token in range(len(scores))]
    weights = {token: math.exp((scores[token] - scores[ranked[0]]) / sampling.temperature) for token in ranked}
    kept = ranked[: sampling.top_k] if sampling.top_k else ranked
    total, mass, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if sampling.top_p < 1 and mass >= sampling.top_p * total:
            break
        nucleus.append(token)
        mass += weights[token]
    kept = [token for token in nucleus if weights[token] >= sampling.min_p * weights[nucleus[0]]]
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(scores))]


@settings(max_examples=400, deadline=None)
@given(
    logits=st.lists(SMALL, min_size=1, max_size=8),
    sampling=samplings(),
    text=st.lists(st.integers(0, 7), max_size=6),
)
def test_equals_the_definition(logits: list[float], sampling: Sampling, text: list[int]) -> None:
    text = [token for token in text if token < len(logits)]
    found = distribution(torch.tensor(logits), sampling, Counter(text))
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(slowly(logits, sampling, text), abs=1e-12)


def test_filters_see_what_the_one_before_left() -> None:
    """Top-p counts within top-k, min-p within the nucleus: worked by hand on probabilities .4 .3 .2 .1."""
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()
    cases: list[tuple[dict[str, Any], list[float]]] = [
        ({"top_k": 2, "top_p": 0.55}, [0, 1, 0, 0]),  # .4 is .571 of what top-k left
        ({"top_p": 0.75}, [2 / 9, 4 / 9, 0, 3 / 9]),  # .4 + .3 do not reach .75
        ({"top_p": 0.65}, [0, 4 / 7, 0, 3 / 7]),
        ({"min_p": 0.45}, [2 / 9, 4 / 9, 0, 3 / 9]),
        ({"top_k": 3, "min_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
    ]
    for options, expected in cases:
        found = distribution(logits, Sampling(temperature=1.0, **options), {})
        assert found.tolist() == pytest.approx(expected, abs=1e-7)


def test_penalties_by_hand() -> None:
    sampling = Sampling(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=2.0)
    found = distribution(torch.tensor([5.0, 1.0, -1.0, 3.0]), sampling, {0: 2, 1: 1, 2: 1})
    expected = torch.tensor([(5 - 1 - 1) / 2, (1 - 1 - 0.5) * 2, (-1 - 1 - 0.5) * 2, 3.0], dtype=torch.float64)
    assert found.tolist() == pytest.approx(expected.softmax(0).tolist(), abs=1e-12)


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0])
    assert distribution(logits, Sampling(), {}).tolist() == [0, 1, 0, 0, 0]
    assert distribution(logits, Sampling(temperature=1.0, top_k=2), {}).nonzero().flatten().tolist() == [1, 3]
    assert distribution(logits, Sampling(temperature=1.0, top_p=0.4), {}).nonzero().flatten().tolist() == [1, 3]


def test_forbidden_tokens_stay_forbidden_and_the_logits_untouched() -> None:
    logits = torch.tensor([0.0, float("-inf"), 1.0], dtype=torch.bfloat16)
    before = logits.clone()
    sampling = Sampling(temperature=2.0, presence_penalty=1.0, repetition_penalty=3.0, min_p=0.0)
    assert float(distribution(logits, sampling, {1: 3, 0: 1})[1]) == 0.0
    assert torch.equal(logits, before)
    for bad in ([float("nan"), 1.0], [float("-inf")] * 2, [float("inf"), 0.0]):
        with pytest.raises(ValueError, match="finite maximum"):
            distribution(torch.tensor(bad), Sampling(temperature=1.0), {})


def test_bad_values_are_reported_together() -> None:
    with pytest.raises(ValueError, match=r"temperature.*top_k.*top_p.*min_p.*repetition_penalty") as caught:
        Sampling(temperature=-1.0, top_k=0, top_p=0.0, min_p=2.0, repetition_penalty=0.0, frequency_penalty=math.nan)
    assert "frequency_penalty: expected a finite number" in str(caught.value)


def shares(size: int) -> st.SearchStrategy[Tensor]:
    """Distributions of float64, zeros included."""
    weights = st.lists(st.integers(0, 40), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


pairs = st.integers(2, 7).flatmap(lambda n: st.tuples(shares(n), shares(n)))


@settings(max_examples=300, deadline=None)
@given(pair=pairs)
def test_accepted_and_replaced_add_up_to_the_target(pair: tuple[Tensor, Tensor]) -> None:
    """sum_x q(x) [a(x) 1_x + (1 - a(x)) residual] = p, with a(x) = min(1, p/q); the accepted mass is 1 - TV."""
    p, q = pair
    accept = torch.where(q > 0, (p / q).clamp_max(1.0), 0.0)
    mixed = q * accept
    for token in q.nonzero().flatten().tolist():
        lost = float(q[token] * (1 - accept[token]))
        if lost > 0:
            rest = residual(p, q, token)
            assert float(rest.sum()) == pytest.approx(1.0, abs=1e-12)
            assert float(rest[token]) == 0.0
            mixed = mixed + lost * rest
    assert mixed.tolist() == pytest.approx(p.tolist(), abs=1e-12)
    assert float((q * accept).sum()) == pytest.approx(1 - float((p - q).abs().sum()) / 2, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(pair=pairs, token=st.integers(0, 6))
def test_a_certain_proposal_is_one_hot(pair: tuple[Tensor, Tensor], token: int) -> None:
    p = pair[0]
    token %= p.numel()
    one_hot = torch.zeros_like(p)
    one_hot[token] = 1.0
    if float(p[token]) < 1.0:
        assert torch.equal(residual(p, None, token), residual(p, one_hot, token))
    assert torch.equal(residual(p, p, token), p)  # where nothing is left p and q are equal
