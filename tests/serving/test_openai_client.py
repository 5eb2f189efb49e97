"""The client's waits and its reading of replies, where no server is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from specflow.targets.retrying import LONGEST_ASKED_WAIT, LONGEST_WAIT, Retrying, retry_after


@pytest.mark.parametrize("attempt", range(12))
def test_waits_double_up_to_a_limit_and_differ(attempt: int) -> None:
    waits = [Retrying(retries=12, backoff=1.0).wait(attempt, None) for _ in range(50)]
    top = min(2.0**attempt, LONGEST_WAIT)
    assert top / 2 <= min(waits) < max(waits) <= top
    assert len(set(waits)) > 40


def test_a_server_s_wish_is_a_lower_bound_within_reason() -> None:
    retrying = Retrying(retries=1, backoff=0.5)
    assert all(7 <= retrying.wait(0, 7) <= 7.5 for _ in range(50))
    assert retrying.wait(0, 1e9) <= LONGEST_ASKED_WAIT + 0.5


@pytest.mark.parametrize(
    ("text", "low", "high"), [("7", 7, 7), ("0.5", 0.5, 0.5), ("-3", 0, 0), (None, None, None), ("soon", None, None)]
)
def testretry_after(text: str | None, low: float | None, high: float | None) -> None:
    found = retry_after(httpx.Response(429, headers={} if text is None else {"Retry-After": text}))
    assert found == low == high


def test_retry_after_as_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    found = retry_after(httpx.Response(503, headers={"Retry-After": date}))
    assert found is not None
    assert 85 < found <= 90
    assert retry_after(httpx.Response(503, headers={"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"})) == 0
