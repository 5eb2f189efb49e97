"""A few of the kills of ``make kill-capture``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kill_capture import survive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_capture_killed_at_random_moments_ends_with_the_bytes_of_an_uninterrupted_one(tmp_path: Path) -> None:
    done = survive(tmp_path / "capture", kills=2, seed=3, workers=2, documents=42)  # a parent, then a worker
    assert done.failures == []
    assert done.kills == 2
    assert done.stores >= 1
