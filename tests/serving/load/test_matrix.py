"""The whole matrix: its cells and their order, what a killed run keeps, and when there is no measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specflow.config.load import LoadShape, MeasureParams
from specflow.serving.load import matrix
from specflow.serving.load.arrivals import poisson, read_trace
from specflow.serving.load.cells import ALL, Cell, Visit, cells_of, visits
from specflow.serving.load.generator import Conditions, Endpoint
from specflow.serving.load.protocols import Asked, Generate
from specflow.serving.load.samples import Block, Failure
from specflow.targets.retrying import ServerError
from tests.serving.load.samples import block, sample

CONDITIONS = Conditions(max_new_tokens=8, cache="cold", warmup_requests=1)


def prompts(**kinds: int) -> list[Asked]:
    return [Asked(id=f"{kind}{i}", kind=kind, ids=(1,)) for kind, count in kinds.items() for i in range(count)]


def shape(**values: Any) -> LoadShape:
    return LoadShape.model_validate({"concurrency": (1, 4), **values})


def test_cells_are_data_set_by_sampling_by_load() -> None:
    sampling = {"greedy": {}, "production": {"temperature": 0.7}}
    cells = cells_of(shape(rates=(2.0,), sampling=sampling, mix_kinds=True), prompts(b=2, a=5), [0.0, 0.5])
    assert len({c.name for c in cells}) == len(cells) == 3 * 2 * 4
    assert [c.name for c in cells[:4]] == ["a, greedy, 1 in flight", "a, greedy, 4 in flight", "a, greedy, 2 a second",
                                           "a, greedy, trace"]  # fmt: skip
    one, four, rate, trace = cells[:4]
    # Every prompt once, and three per request in flight.
    assert [a.id for a in one.asked] == ["a0", "a1", "a2", "a3", "a4"]
    assert [a.id for a in four.asked] == [f"a{i % 5}" for i in range(12)]
    assert (len(rate.asked), len(rate.offsets)) == (5, 5)
    assert trace.offsets == (0.0, 0.5)
    mixed = next(c for c in cells if c.dataset == ALL)
    assert [a.id for a in mixed.asked] == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_poisson_arrivals_are_seeded_and_have_the_rate() -> None:
    first = poisson(4.0, 20_000, seed=3)
    assert first == poisson(4.0, 20_000, seed=3) != poisson(4.0, 20_000, seed=4)
    gaps = np.diff([0.0, *first])
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)  # exponential: the deviation is the mean


def test_a_trace_is_read_whole_or_refused_with_every_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"seconds": 0}\n\n{"seconds": 0.5, "more": 1}\n{"seconds": 0.5}\n')
    assert read_trace(path) == [0.0, 0.5, 0.5]
    path.write_text('{"seconds": 1}\n{"seconds": 0.5}\nnonsense\n{"at": 3}\n')
    with pytest.raises(ValueError, match=r"(?s)jsonl:2: .*jsonl:3: .*jsonl:4: "):
        read_trace(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="found none"):
        read_trace(path)


def order(*, repeats: int, together: bool) -> list[str]:
    cells = cells_of(shape(), prompts(k=1))
    found = visits(cells, ("plain", "drafter"), repeats=repeats, together=together)
    return [f"{v.repeat}{v.mode[0]}{v.cell.concurrency}" for v in found]


def test_servers_take_turns_and_who_begins_is_swapped() -> None:
    assert order(repeats=2, together=False) == ["0p1", "0p4", "0d1", "0d4", "1d1", "1d4", "1p1", "1p4"]
    assert order(repeats=2, together=True) == ["0p1", "0d1", "0d4", "0p4", "1d1", "1p1", "1p4", "1d4"]


class Recorded:
    """Servers of which only the visits are kept; blocks are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, dies_after: int = 99, failures: int = 0) -> None:
        self.started: list[str] = []
        self.measured: list[str] = []
        self.warmed: list[str] = []
        self._left, self._failures = dies_after, failures

        async def run_block(endpoint: Endpoint, cell: Cell, _: Conditions, *, mode: str, repeat: int) -> Block:
            if self._left == 0:
                raise ServerError("it does not answer any more")
            self._left -= 1
            self.measured.append(f"{repeat}{mode[0]}{cell.concurrency}")
            lost = [
                Failure(number=i, id="k0", kind="k", due=0.0, at=1.0, reason="timeout") for i in range(self._failures)
            ]
            one = sample("k0", [(1.0, 1), (2.0, 3)])
            return block(one, one, one, mode=mode, repeat=repeat, cell=cell.name, failures=tuple(lost))

        async def warm_up(endpoint: Endpoint, cell: Cell, _: Conditions) -> None:
            self.warmed.append(endpoint.url)

        monkeypatch.setattr(matrix, "run_block", run_block)
        monkeypatch.setattr(matrix, "warm_up", warm_up)

    @contextmanager
    def endpoint(self, mode: str, *, repeat: int) -> Iterator[Endpoint]:
        self.started.append(f"{repeat}{mode[0]}")
        yield Endpoint(url=f"http://{mode}-{len(self.started)}", dialect=Generate(), timeout=1.0)


def planned(repeats: int = 2) -> list[Visit]:
    return list(visits(cells_of(shape(), prompts(k=1)), ("plain", "drafter"), repeats=repeats, together=False))


def test_a_run_that_ended_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "blocks.jsonl"
    first = Recorded(monkeypatch, dies_after=3)
    with pytest.raises(ServerError, match="any more"):
        matrix.measure(planned(), first, CONDITIONS, kept=kept, max_failures=0.0)
    assert first.started == ["0p", "0d"]
    assert first.warmed == ["http://plain-1", "http://drafter-2"]
    with kept.open("a") as file:
        file.write('{"mode": "drafter", "cell"')  # killed while it wrote
    second = Recorded(monkeypatch)
    blocks = matrix.measure(planned(), second, CONDITIONS, kept=kept, max_failures=0.0)
    assert second.started == ["0d", "1d", "1p"]
    assert second.measured == ["0d4", "1d1", "1d4", "1p1", "1p4"]
    assert [(b.mode, b.repeat) for b in blocks[:3]] == [("plain", 0), ("plain", 0), ("drafter", 0)]
    assert len(kept.read_text().splitlines()) == 8
    third = Recorded(monkeypatch)
    assert matrix.measure(planned(), third, CONDITIONS, kept=kept, max_failures=0.0) == blocks
    assert third.started == []


def test_too_many_failures_are_no_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for allowed, fails in ((0.0, True), (0.24, True), (0.25, False)):
        kept = tmp_path / f"{allowed}.jsonl"
        servers = Recorded(monkeypatch, failures=1)
        if fails:
            with pytest.raises(
                ServerError, match=r"1 of 4 requests failed, .* may: timeout \(1\)\n  request 1: timeout"
            ):
                matrix.measure(planned(), servers, CONDITIONS, kept=kept, max_failures=allowed)
            assert not kept.exists()
        else:
            assert len(matrix.measure(planned(), servers, CONDITIONS, kept=kept, max_failures=allowed)) == 8


def test_a_block_that_is_judged_unfit_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "blocks.jsonl"
    with pytest.raises(ServerError, match=r"^drafter, k, greedy, 1 in flight: it does not speculate$"):
        matrix.measure(
            planned(), Recorded(monkeypatch), CONDITIONS, kept=kept, max_failures=0.0,
            judge=lambda b: "it does not speculate" if b.mode == "drafter" else None,
        )  # fmt: skip
    assert [json.loads(line)["mode"] for line in kept.read_text().splitlines()] == ["plain", "plain"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"concurrency": ()}, "nothing to measure"),
        ({"concurrency": (4, 1)}, "out of order"),
        ({"rates": (2.0, 2.0)}, "out of order"),
        ({"sampling": {"s": {"temperature": 1.0, "draft_temperature": 0.5}}}, "a server decides"),
        ({"sampling": {}}, "at least 1"),
        ({"max_failures": 1.0}, "less than 1"),
    ],
)
def test_a_shape_that_cannot_be_measured(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape(**values)


def test_measure_needs_an_address() -> None:
    assert MeasureParams.model_validate({"url": "http://h:1/v1/"}).url == "http://h:1"
    with pytest.raises(ValueError, match="not the address of a server"):
        MeasureParams.model_validate({"url": "h:1"})
