"""Figures of a cell against sums by hand, and against numpy where there is a choice."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.config.load_result import CellRecord, Speedup
from specflow.serving.load.counts import lengths, positions
from specflow.serving.load.figures import break_even, side_of, speedup
from specflow.serving.load.record import DraftLengths, cell_records, notes_of, settings_notes
from specflow.serving.load.samples import Block, Failure, Generator
from specflow.serving.load.spread import ratio_interval, spread, weighted_percentile
from specflow.serving.load.steady import steady_rate
from tests.serving.load.samples import block, closed, sample


def test_figures_are_ratios_of_sums_over_repeats() -> None:
    one = block(
        sample("a", [(1.0, 1), (2.0, 3), (3.0, 5)], rounds=2, accepted=(0, 2), proposed=6),
        sample("b", [(2.0, 1), (4.0, 2)], rounds=1, accepted=(1,), proposed=3),
    )
    two = block(sample("a", [(1.0, 1), (5.0, 9)], rounds=4, accepted=(1, 2, 1), proposed=12), repeat=1)
    side = side_of([one, two], closed(2), seed=0, block_size=4, num_proposals=3)
    assert side is not None
    assert (side.requests, side.prompts, side.tokens, side.seconds) == (3, 2, 16, 9.0)
    assert side.tokens_per_second == 16 / 9
    assert side.tokens_per_request_second == 16 / (3 + 4 + 5)
    assert side.first_token.mean == 4 / 3
    assert side.per_token is not None
    assert side.per_token.mean == (2 + 2 + 4) / (4 + 1 + 8)  # never the mean of 0.5, 2 and 0.5
    assert (side.per_token.p50, side.per_token.worst) == (0.5, 2.0)
    assert side.between_tokens is not None
    assert side.between_tokens.mean == side.per_token.mean
    # Tau: without the first token of each; an average of averages would be (4/2 + 1/1 + 8/4) / 3.
    assert side.tau == (4 + 1 + 8) / (2 + 1 + 4)
    assert side.tokens_per_round == 16 / 7
    assert side.rounds == 7
    assert side.acceptance is not None
    assert side.acceptance.accepted == [5, 1, 0]
    assert side.acceptance.cumulative == [5 / 7, 1 / 7, 0.0]
    assert side.acceptance.conditional == [5 / 7, 1 / 5, 0.0]
    assert side.lengths is not None
    assert side.lengths.model_dump() == {
        "block_size": 4, "num_proposals": 3, "verify_len": 4.0, "accept_len": 6 / 7, "cap_trim": 0.0,
        "commit_len": 13 / 7,
    }  # fmt: skip
    assert side.cached_share == 0.0


def test_times_count_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    waited = replace(sample("a", [(3.0, 1), (4.0, 2)], sent=2.0), due=1.0)
    assert (waited.first_token, waited.seconds) == (2.0, 3.0)
    side = side_of([block(waited)], closed(), seed=0)
    assert side is not None
    assert side.late == 1.0


def test_percentiles_between_tokens_count_tokens_not_chunks() -> None:
    # 90 tokens a millisecond each in one chunk, then ten of a second each.
    arrivals = [(0.0, 1), (0.09, 91), *((0.09 + i, 91 + i) for i in range(1, 11))]
    side = side_of([block(sample("a", arrivals))], closed(), seed=0)
    assert side is not None
    assert side.between_tokens is not None
    assert side.between_tokens.p50 == pytest.approx(0.001)
    assert side.between_tokens.p90 == pytest.approx(0.001)
    assert side.between_tokens.p99 == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=30), st.sampled_from([50, 90, 99])
)
def test_weighted_percentile_is_that_of_each_value_repeated(pairs: list[tuple[int, int]], q: int) -> None:
    values, weights = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    whole = np.repeat(values, weights.astype(int))
    assert weighted_percentile(values, weights, q) == np.percentile(whole, q, method="inverted_cdf")


def test_intervals_draw_prompts_and_hold_the_truth() -> None:
    random = np.random.default_rng(1)
    rows = [(f"p{i % 40}", float(t), 1.0) for i, t in enumerate(random.exponential(2.0, size=400))]
    found = spread(rows, seed=0)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high
    standard_error = 2.0 / np.sqrt(400)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * standard_error, rel=0.35)
    # The same answers of one prompt each time tell nothing more about other prompts.
    single = spread([("a", 1.0, 1.0), ("a", 3.0, 1.0)], seed=0)
    assert single is not None
    assert (single.mean, single.low, single.high) == (2.0, None, None)
    assert ratio_interval(np.ones((1, 2)), lambda s: s[..., 0], seed=0) == (None, None)


def test_steady_throughput_leaves_out_filling_and_draining() -> None:
    # Two in flight; a: 0..4, b: 1..3, c follows b: 3..7. Full from 2 (b's first token) to 4 (a ends, nothing follows).
    found = block(
        sample("a", [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]),
        sample("b", [(2.0, 1), (3.0, 5)]),
        sample("c", [(3.5, 1), (4.0, 2), (7.0, 3)], sent=3.0),
    )
    assert steady_rate([found], 2) == (2 + 4 + 2) / 2.0
    assert steady_rate([found], 3) is None
    assert steady_rate([found], None) is None


def test_speed_up_is_of_tokens_in_flight_over_the_same_prompts() -> None:
    fast = block(sample("a", [(1.0, 1), (2.0, 8)]), sample("b", [(1.0, 1), (4.0, 10)]))
    slow = block(sample("a", [(1.0, 1), (8.0, 8)]), sample("b", [(1.0, 1), (10.0, 10)]), mode="plain")
    found = speedup([fast], [slow], seed=0)
    assert found is not None
    assert found.ratio == (18 / 6) / (18 / 18)
    assert found.by_the_clock == (18 / 4) / (18 / 10)
    assert found.low == pytest.approx(2.5)  # b drawn twice
    assert found.high == pytest.approx(4.0)
    assert speedup([fast], [], seed=0) is None


def cell(concurrency: int, ratio: float, *, dataset: str = "k") -> CellRecord:
    gain = Speedup(ratio=ratio, low=None, high=None, by_the_clock=ratio)
    return CellRecord(
        dataset=dataset, sampling="greedy", load="", concurrency=concurrency, rate=None, baseline=None, drafter=None,
        speedup=gain,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratios", "at", "up_to", "slower", "says"),
    [
        ({1: 2.0, 4: 1.5, 16: 0.5}, 8.0, 4, 16, "faster up to about 8.0 requests in flight"),
        ({1: 2.0, 8: 1.1}, None, 8, None, "faster at every measured concurrency, up to 8"),
        ({1: 0.9, 8: 0.5}, None, None, 1, "not faster at any measured concurrency from 1 on"),
        ({1: 1.5, 4: 0.5, 8: 1.2}, 2.0, 1, 4, "faster up to about 2.0 requests in flight; faster again above that"),
    ],
)
def test_break_even(
    ratios: dict[int, float], at: float | None, up_to: int | None, slower: int | None, says: str
) -> None:
    (found,) = break_even([cell(c, ratio) for c, ratio in reversed(ratios.items())])
    assert found.concurrency == (None if at is None else pytest.approx(at))
    assert (found.faster_up_to, found.slower_from) == (up_to, slower)
    assert found.says.startswith(says)


def test_break_even_is_found_for_each_data_set() -> None:
    found = break_even([cell(1, 2.0), cell(1, 0.5, dataset="other")])
    assert [(b.dataset, b.slower_from) for b in found] == [("k", None), ("other", 1)]


def test_where_a_scheduler_cuts_what_was_accepted_before_it_is_not_known() -> None:
    # Three rounds that verify 2, 2 and 4 rows, and commit 1 + 1, 1 + 0 and 1 + 3.
    cut = sample("a", [(1.0, 1), (2.0, 8)], rounds=3, accepted=(1, 1, 0, 1), proposed=9, cut=(0, 0, 2, 0, 1))
    found = lengths([cut], block_size=4, num_proposals=3)
    assert found is not None
    assert (found.verify_len, found.accept_len, found.cap_trim) == (8 / 3, None, None)
    assert found.commit_len == pytest.approx(7 / 3)
    assert positions((), num_proposals=3) is None


def test_an_answer_without_a_count_of_rounds_leaves_no_tau() -> None:
    counted, other = sample("a", [(1.0, 1), (2.0, 5)], rounds=2, accepted=(0, 2)), sample("b", [(1.0, 1), (2.0, 5)])
    for samples, tau in (([counted, other], None), ([counted], 2.0), ([counted, sample("c", [(1.0, 1)])], 2.0)):
        side = side_of([block(*samples)], closed(), seed=0)
        assert side is not None
        assert side.tau == tau


def test_failures_are_in_no_figure_and_are_told() -> None:
    lost = Failure(number=1, id="b", kind="k", due=0.0, at=99.0, reason="broken_off")
    cells = [closed(8)]
    found = block(sample("a", [(1.0, 1), (2.0, 3)], rounds=2, accepted=(2,)), failures=(lost,), cell=cells[0].name)
    (record,) = cell_records(cells, [found], seed=0, lengths=DraftLengths())
    assert record.drafter is not None
    assert record.drafter.failures == {"broken_off": 1}
    assert record.drafter.request.worst == 2.0
    assert record.speedup is None
    notes = notes_of([record], running={"drafter": 4})
    assert any("1 requests failed and are left out: broken_off (1)" in note for note in notes)
    assert any("runs 4 requests at a time" in note for note in notes)
    assert any("1.000 tokens a round: the drafter accepts next to nothing" in note for note in notes)
    assert settings_notes({"speculative_accept_threshold_single": 1.0}) == []
    assert "0.5" in settings_notes({"speculative_accept_threshold_acc": 0.5})[0]


def test_a_generator_that_was_late_is_told() -> None:
    cells = [closed(1)]
    for lag, told in ((0.04, False), (0.06, True)):
        own = Generator(lag_mean=lag, lag_worst=1.0, cpu_seconds=0.5)
        found = block(sample("a", [(1.0, 1), (2.0, 2)]), generator=own, cell=cells[0].name)
        records = cell_records(cells, [found], seed=0, lengths=DraftLengths())
        assert any("too little of the processor" in note for note in notes_of(records, running={})) is told


def test_blocks_survive_being_written() -> None:
    lost = Failure(number=1, id="b", kind="k", due=0.0, at=99.0, reason="broken_off")
    own = Generator(lag_mean=0.1, lag_worst=0.2, cpu_seconds=0.3)
    first = sample("a", [(1.0, 1), (2.0, 3)], rounds=2, accepted=(0, 1), cut=(0, 1))
    second: Any = sample("b", [(1.0, None), (2.0, None)], tokens=5)
    whole = block(first, second, failures=(lost,), generator=own)
    assert Block.from_json(json.loads(json.dumps(whole.as_json()))) == whole
