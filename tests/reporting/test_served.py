"""A server under load in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specflow.config.load_result import LoadResult, ServerRecord
from specflow.reporting.collect import ReportData
from specflow.reporting.html import render_html
from specflow.serving.load.figures import break_even
from specflow.serving.load.record import CONVENTIONS, DraftLengths, cell_records
from tests.reporting.helpers import report_data
from tests.serving.load.samples import block, closed, sample


def record() -> dict[str, Any]:
    """Twice as fast one at a time, half as fast at eight."""
    cells = [closed(1, dataset="chat"), closed(8, dataset="chat")]
    blocks = []
    for cell, seconds in zip(cells, (2.0, 8.0), strict=True):
        drafted = sample("a", [(0.5, 1), (seconds, 9)], rounds=4, accepted=(1, 2, 1), proposed=12)
        blocks += [
            block(drafted, cell=cell.name),
            block(sample("a", [(0.5, 1), (4.0, 9)]), cell=cell.name, mode="plain"),
        ]
    found = cell_records(cells, blocks, seed=0, lengths=DraftLengths(block_size=4, num_proposals=3))
    settings: dict[str, Any] = {"speculative_algorithm": "DFLASH"}
    result = LoadResult(
        complete=True, conventions=CONVENTIONS, cells=found, break_even=break_even(found), sampling={"greedy": {}},
        cache_state="cold", alternation="in turn", dataset={}, conditions={"max_new_tokens": 9, "repeats": 1},
        servers=[
            ServerRecord(mode="drafter", engine="sglang", version="0.5.23", started="here", settings=settings)
        ],
        parity=None, unproven=True, drafter=None, target=None, hardware={}, versions={}, notes=["mind the gap"],
    )  # fmt: skip
    return dict(json.loads(result.model_dump_json()))


@pytest.fixture(scope="module")
def data() -> ReportData:
    whole = report_data()
    return replace(whole, drafters=[replace(d, served=record()) for d in whole.drafters])


def test_the_page_shows_the_server_beside_the_embedded_engine(data: ReportData) -> None:
    page = render_html(data)
    assert "Behind a server, under load" in page
    assert "<td>chat</td><td>greedy</td><td>8 in flight</td><td>drafter</td>" in page
    assert "2.00×" in page
    assert "0.50×" in page
    assert "faster up to about 4.0 requests in flight" in page  # 8 ** ((2 - 1) / (2 - 0.5))
    assert "mind the gap" in page
    assert "Not proved by a parity run." in page
    assert "and was not run here" not in page


def test_a_report_of_a_server_alone_leads_with_it(data: ReportData) -> None:
    alone = replace(data, drafters=[replace(d, benchmark=None) for d in data.drafters])
    page = render_html(alone)
    assert "was measured under load, in turn with the same server without" in page
    assert "No benchmark" not in page
