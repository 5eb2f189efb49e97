"""Fits against brute force and against tables they should give back; timings that make no table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specflow.costs.cells import Cell, cell_of, medians, uneven_splits
from specflow.costs.checks import CostError, check_cells, noise_of, spread_of
from specflow.costs.fit import fit_additive, fit_rows, misses
from specflow.costs.tables import AdditiveTable

TRUE = AdditiveTable(
    bias_seconds=0.02, requests=(1, 2, 4), alpha_seconds=(0.0, 0.001, 0.004), rows=(1, 4, 8, 16),
    theta_seconds=(0.0, 0.002, 0.009, 0.03),
)  # fmt: skip


def cells(*, noise: float = 0.0, seed: int = 0, rows: tuple[int, ...] = (1, 2, 4)) -> list[Cell]:
    """As the true table says, requests 1, 2, 4 by rows 1, 2, 4 of each."""
    random = np.random.default_rng(seed)
    found = []
    for requests, each in itertools.product((1, 2, 4), rows):
        seconds = float(TRUE.seconds(requests, requests * each)) * (1 + noise * random.standard_normal(9))
        found.append(Cell(split=(each,) * requests, seconds=tuple(seconds.tolist())))
    return found


def test_additive_costs_are_found_again() -> None:
    table = fit_additive(cells())
    for cell in cells():
        assert float(table.seconds(cell.requests, cell.rows)) == pytest.approx(cell.median, rel=1e-6)
    assert abs(misses(table, cells())).max() < 1e-6
    assert (table.requests, table.rows) == ((1, 2, 4), (1, 2, 4, 8, 16))
    assert (table.alpha_seconds[0], table.theta_seconds[0]) == (0.0, 0.0)
    noisy = fit_additive(cells(noise=0.02))
    assert (np.diff(noisy.alpha_seconds) >= 0).all()
    assert (np.diff(noisy.theta_seconds) >= 0).all()
    assert abs(misses(noisy, cells())).max() < 0.03
    with pytest.raises(ValueError, match="3 numbers of requests and 1 of rows per request"):
        fit_additive(cells(rows=(2,)))


def test_cost_by_rows_is_the_best_growing_one() -> None:
    """Against every way to pool neighbours: the least-squares growing fit is the best of them that grows."""
    random = np.random.default_rng(2)
    for _ in range(30):
        seconds = random.uniform(0.5, 1.5, size=5)
        table = fit_rows([Cell(split=(n,), seconds=(float(s),)) for n, s in enumerate(seconds, 1)])
        best, fit = np.inf, None
        for cuts in itertools.product((False, True), repeat=4):
            levels = [float(np.mean(b)) for b in np.split(seconds, np.flatnonzero(cuts) + 1)]
            sizes = [len(b) for b in np.split(seconds, np.flatnonzero(cuts) + 1)]
            level = np.repeat(levels, sizes)
            error = float(((level - seconds) ** 2).sum())
            if (np.diff(level) >= 0).all() and error < best:
                best, fit = error, level
        assert 1 / np.array(table.rounds_per_second) == pytest.approx(fit)
        assert (table.rows, table.max_rows) == ((1, 2, 3, 4, 5), 5)


def test_cells() -> None:
    cell = Cell(split=(2, 1), seconds=(1.0, 1.2, 0.9))
    assert (cell.requests, cell.rows, cell.uniform, cell.median) == (2, 3, False, 1.0)
    assert cell.noise == pytest.approx(1.2533 * 1.4826 * 0.1 / 3**0.5)
    assert cell_of(cell.as_json()) == cell
    more = Cell(split=(1, 2), seconds=(3.0, 3.1))
    assert medians([cell, more]) == {(2, 3): 1.2}


def test_uneven_splits() -> None:
    assert uneven_splits(3, 7, most=4) == [(3, 2, 2), (4, 2, 1)]
    assert uneven_splits(2, 8, most=4) == [(4, 4)]
    for requests, rows in itertools.product((1, 2, 5), range(1, 26)):
        if requests <= rows <= 5 * requests:
            for split in uneven_splits(requests, rows, most=5):
                assert (len(split), sum(split)) == (requests, rows)
                assert min(split) >= 1
                assert max(split) <= 5
    with pytest.raises(ValueError, match="9 rows for 2 requests of 1 to 4 rows each"):
        uneven_splits(2, 9, most=4)


def test_good_timings_pass() -> None:
    found = cells(noise=0.03)
    check_cells(found)
    assert noise_of(found) < 0.03
    assert spread_of(found) == pytest.approx(0.054 / 0.02 - 1, rel=0.2)


def test_flat_timings_are_refused() -> None:
    flat = [Cell(split=(n,), seconds=(1.0, 1.001, 0.999)) for n in (1, 2, 4)]
    with pytest.raises(CostError, match="a flat table, with which a scheduler verifies everything"):
        check_cells(flat)
    with pytest.raises(CostError, match="one number of rows was measured"):
        check_cells(flat[:1])
    # A spread of 10 % is real at a noise of 0.1 %, and chance at one of 5 %.
    for spread, wobble, refused in ((0.1, 0.001, False), (0.1, 0.1, True)):
        grown = [Cell(split=(n,), seconds=tuple((1 + spread * n / 4) * (1 + wobble * w) for w in (-1, -0.7, 0, 0.7, 1)))
                 for n in (1, 2, 4)]  # fmt: skip
        if refused:
            with pytest.raises(CostError, match="flat table"):
                check_cells(grown)
        else:
            check_cells(grown)


def test_noise_and_falling_costs_are_refused_together() -> None:
    wild = [Cell(split=(n,), seconds=(s, 0.2 * s, 3 * s)) for n, s in ((1, 1.0), (2, 1.5), (4, 2.0))]
    with pytest.raises(CostError) as caught:
        check_cells(wild)
    assert len(caught.value.problems) == 2  # noisy, and flat beside the noise
    assert "is uncertain by" in caught.value.problems[0]
    falling = [Cell(split=(n,), seconds=(s, s, s)) for n, s in ((1, 1.0), (2, 2.0), (4, 1.0))]
    with pytest.raises(CostError, match="1 requests: the cost does not grow with rows"):
        check_cells(falling)
