"""A server on a local port that publishes SGLang's counters as prometheus-client writes them, and can be restarted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

LABELS = ("model_name",)


class FakeMetrics:
    """``finish`` counts requests as SGLang does when they end; ``on_look`` is called with the number of each look."""

    def __init__(self, *, metrics: bool = True, info: dict[str, Any] | None = None) -> None:
        self.metrics, self.info = metrics, info
        self.on_look: Callable[[int], Any] = lambda n: None
        self.looks, self.key = 0, ""
        self.restart()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def restart(self) -> None:
        self.registry = CollectorRegistry()
        streaming = (*LABELS, "is_streaming")
        self.tokens = Counter("sglang:generation_tokens_total", "tokens", streaming, registry=self.registry)
        self.requests = Counter("sglang:num_requests_total", "requests", streaming, registry=self.registry)
        self.prompts = Counter("sglang:prompt_tokens_total", "prompt tokens", streaming, registry=self.registry)
        self.rounds = Counter("sglang:spec_verify_calls_total", "passes", LABELS, registry=self.registry)
        self.draft = Gauge("sglang:spec_num_draft_tokens", "window", (*LABELS, "tp_rank"), registry=self.registry)
        self.running = Gauge("sglang:num_running_reqs", "running", (*LABELS, "tp_rank"), registry=self.registry)

    def finish(self, *, tokens: int, rounds: int, requests: int = 1, streaming: bool = False) -> None:
        kind = {"model_name": "m", "is_streaming": str(streaming).lower()}
        self.tokens.labels(**kind).inc(tokens)
        self.requests.labels(**kind).inc(requests)
        self.prompts.labels(**kind).inc(7 * requests)
        if rounds:
            self.rounds.labels(model_name="m").inc(rounds)

    def text(self) -> bytes:
        for rank in ("0", "1"):
            self.draft.labels(model_name="m", tp_rank=rank).set(6)
            self.running.labels(model_name="m", tp_rank=rank).set(2)
        return generate_latest(self.registry)

    def __enter__(self) -> FakeMetrics:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(fake: FakeMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":  # SGLang mounts an application: its address ends with a slash
                self.send_response(307 if fake.metrics else 404)
                self.send_header("Location", f"{fake.url}/metrics/")
                self.end_headers()
                return
            fake.key = self.headers.get("Authorization", "")
            known = fake.metrics or self.path == "/server_info"
            data = b""
            if self.path == "/metrics/":
                fake.on_look(fake.looks)
                fake.looks += 1
                data = fake.text()
            elif self.path == "/server_info":
                data = json.dumps(fake.info or {}).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
