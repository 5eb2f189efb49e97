"""A real HTTP server on a local port that speaks SGLang's own interface over the tiny target, and misbehaves on demand.

Its rows are those of the target in this process, so that a test knows every number before.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from specflow.decoding.speculative import decode_speculative
from specflow.decoding.trees import TreeShape
from specflow.drafters.loading import load_drafter
from specflow.serving.verification.answers import histogram
from specflow.targets.target import Target

Reply = dict[str, Any]


@dataclass
class Act:
    """What is done with one request."""

    status: int = 200
    drop: bool = False
    """Close the connection without a reply."""
    wait: float = 0.0
    change: Callable[[Reply], Any] = field(default=lambda reply: reply)
    """Applied to the honest reply."""


class FakeSglang:
    """``behave(n, ids)`` decides on the n-th request (from 0); ``server`` and ``model`` are added to what it says."""

    def __init__(
        self,
        target: Target,
        layer_ids: tuple[int, ...],
        *,
        behave: Callable[[int, list[int]], Act] = lambda n, ids: Act(),
        server: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
    ) -> None:
        self.target, self.layer_ids, self.behave = target, layer_ids, behave
        self.server = {
            "version": "0.5.23", "dtype": "float32", "quantization": None, "speculative_algorithm": None,
            "aux_hidden_state_capture": "dflash", "return_aux_hidden_state_layer_ids": list(layer_ids),
            "chunked_prefill_size": -1, "page_size": 1, "max_req_input_len": 4000, **(server or {}),
        }  # fmt: skip
        self.model = {"model_path": str(target.path), "architectures": ["LlamaForCausalLM"], **(model or {})}
        self.bodies: list[dict[str, Any]] = []
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.tokens_in_flight = self.most_tokens = self.in_flight = self.most_in_flight = 0
        self.dead = False
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> FakeSglang:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def die(self) -> None:
        """Close the port; connections that are open get nothing more."""
        if not self.dead:
            self.dead = True
            self._http.shutdown()
            self._http.server_close()

    def generate(self, body: dict[str, Any]) -> tuple[Act, Any]:
        ids = body["input_ids"]
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.asked[tuple(ids)] += 1
            self.in_flight += 1
            self.tokens_in_flight += len(ids)
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.most_tokens = max(self.most_tokens, self.tokens_in_flight)
        try:
            act = self.behave(number, ids)
            time.sleep(act.wait)
            return act, act.change(self.honest(body))
        finally:
            with self._lock:
                self.in_flight -= 1
                self.tokens_in_flight -= len(ids)

    def honest(self, body: dict[str, Any]) -> Reply:
        ids = body["input_ids"]
        with self._lock:  # the target has one pass at a time
            output = self.target.forward(
                torch.tensor([ids]), self.target.new_cache(1, len(ids)), layer_ids=self.layer_ids
            )
        assert output.features_BTKH is not None
        return {
            "text": "?",
            "output_ids": [0],
            "prompt_token_ids": ids,
            "meta_info": {
                "prompt_tokens": len(ids),
                "cached_tokens": 0,
                "finish_reason": {"type": "length", "length": 1},
                "hidden_states": [output.features_BTKH[0].flatten(1).tolist()],
            },
        }


def _handler(fake: FakeSglang) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answers = {"/server_info": fake.server, "/model_info": fake.model}
            self._send(200 if self.path in answers else 404, answers.get(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            act, reply = fake.generate(body)
            if act.drop or fake.dead:
                self.close_connection = True
                return
            self._send(act.status, reply if act.status == 200 else {"error": "not now"})

        def _send(self, status: int, value: Any) -> None:
            data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class FakeDrafting(FakeSglang):
    """Answers as a server with a drafter does, by the embedded engine; ``drafter``: the directory it loads."""

    def __init__(
        self, target: Target, drafter: Path, *, server: dict[str, Any], tree: TreeShape | None = None, **named: Any
    ) -> None:
        super().__init__(target, (), server=server, **named)
        self.proposer, self.tree = load_drafter(drafter, target), tree

    def honest(self, body: dict[str, Any]) -> Reply:
        ids, sampling = body["input_ids"], body["sampling_params"]
        assert sampling["temperature"] == 0.0
        assert set(sampling["stop_token_ids"]) == set(self.target.end_ids)
        with self._lock:
            limit = sampling["max_new_tokens"]
            found = decode_speculative(self.target, self.proposer, ids, max_new_tokens=limit, tree=self.tree)
        accepted = [r.accepted for r in found.rounds]
        meta: dict[str, Any] = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(found.tokens),
            "finish_reason": {"type": found.finish},
        }
        if accepted:
            meta["spec_verify_ct"], meta["spec_num_correct_drafts"] = len(accepted), sum(accepted)
            meta["spec_correct_drafts_histogram"] = list(histogram(accepted))
        return {"text": "?", "output_ids": found.tokens, "meta_info": meta}
