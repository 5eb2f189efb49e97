"""A server that was there before, and the name a run has in Prefect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from specflow.workflow.planning import Plan
from specflow.workflow.runner import run_name
from specflow.workflow.server import ServerError, prefect_server
from specflow.workflow.store import ArtifactStore


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Address of a server that answers ``status`` to ``/api/health`` and 404 elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(url: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    with prefect_server(directory / "home", log=directory / "log") as server:
        assert not server.ours
        server.wait_until_ready()
    assert not (directory / "home").exists()


@pytest.mark.parametrize("status", [200, 401])
def test_a_server_that_answers_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with answering(status) as address:
        ask(f"{address}/api", tmp_path, monkeypatch)


def test_a_wrong_or_dead_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200) as address, pytest.raises(ServerError, match=r"no Prefect server at .*, .* 404 to /health; "):
        ask(address, tmp_path, monkeypatch)
    with pytest.raises(ServerError, match=f"no Prefect server at {address}/api, .*unset PREFECT_API_URL"):
        ask(f"{address}/api", tmp_path, monkeypatch)
    with pytest.raises(ServerError, match="no Prefect server at nonsense"):
        ask("nonsense", tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        ("quickstart", "full-quickstart-20260131-235958-012"),
        ("my model/v2", "full-my-model-v2-20260131-235958-012"),
        ("", "full-20260131-235958-012"),
    ],
)
def test_a_run_is_named_after_flow_and_configuration(tmp_path: Path, configuration: str, name: str) -> None:
    planned = Plan(flow="full", store=ArtifactStore(tmp_path), nodes=(), configuration=configuration)
    assert run_name(planned, datetime(2026, 1, 31, 23, 59, 58, 12_345, tzinfo=UTC)) == name
