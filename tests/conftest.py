"""Shared by all tests: one thread, and no state of the user's."""

from __future__ import annotations

import os

import pytest

# Before torch is imported anywhere: more threads than free cores are many times slower, and results vary with them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _no_prefect_server_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
