"""``profile`` of a server that notes its rounds: an HTTP server that answers as SGLang's interface does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from specflow.config.profile import ProfileParams
from specflow.costs.sglang_tables import read_table
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.stages import profile
from specflow.stages.contract import StageError
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target

M, LIMIT = 3, 4


class Noting(BaseHTTPRequestHandler):
    """A round takes 10 ms, 2 a request and 1 a row; the first rounds after a start take ten times as long."""

    payload: ClassVar[dict[str, Any]] = {}
    share: ClassVar[float | None] = None
    shares: ClassVar[list[float | None]] = []
    records: ClassVar[list[dict[str, Any]]] = []

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        state = {"dspark_info_record": {**self.payload, "records": self.records} if self.payload else None}
        self._send({"version": "0.5.23", "dtype": "float32", "device": "cuda", "internal_states": [state]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/set_internal_state":
            own = body["server_args"]
            if own.get("dspark_clear_info_records"):
                type(self).records = []
            if "dspark_force_budget_frac" in own:
                type(self).share = own["dspark_force_budget_frac"]
                self.shares.append(self.share)
                if self.share is not None and not 0.0 < self.share <= 1.0:
                    return self._send({"updated": False})
            return self._send({"updated": True})
        asked = len(body["input_ids"])
        assert len({tuple(ids) for ids in body["input_ids"]}) == asked
        assert body["sampling_params"]["ignore_eos"] is True
        for number in range(body["sampling_params"]["max_new_tokens"]):
            # Requests arrive one after the other.
            running = min(asked, LIMIT, number + 1)
            budget = running * M if self.share is None else int(self.share * running * M)
            milliseconds = (10.0 + 2.0 * running + 1.0 * (running + budget)) * (10.0 if number < 5 else 1.0)
            note = {"forward_ct": number, "num_running_reqs": running, "num_verify_tokens": running + budget}
            self.records.append({**note, **({} if number == 0 else {"step_cpu_ms": milliseconds})})
        return self._send([{"meta_info": {}} for _ in range(asked)])


@pytest.fixture
def url() -> Iterator[str]:
    Noting.share, Noting.shares, Noting.records = None, [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Noting)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def noting(mode: str, **changes: Any) -> None:
    Noting.payload = {
        "mode": mode, "gamma": M, "verify_num_draft_tokens": M + 1, "components": ["core", "step_cpu_time"],
        "simulate_acc_len": 1.0, **changes,
    }  # fmt: skip


def params(url: str, requests: tuple[int, ...] = (1, 2, 4)) -> ProfileParams:
    return ProfileParams.model_validate(
        {"sglang": {"url": url}, "requests": requests, "rows": (1, 2, 4, 8), "context": 6, "samples": 3, "visits": 2}
    )


def run(root: Path, given: ProfileParams) -> FakeContext:
    context = FakeContext(root / "run")
    profile.run(inputs(tiny_target(root)), given, context)
    return context


def test_compact_gives_both_tables_and_leaves_the_server_as_it_was(url: str, tmp_path: Path) -> None:
    noting("compact")
    context = run(tmp_path, params(url))
    additive = read_table(context.output / "sps_additive.json")
    assert isinstance(additive, AdditiveTable)
    assert additive.rows == (1, 2, 4, 8, 16)
    for requests, rows in ((1, 1), (1, 4), (2, 2), (2, 8), (4, 4), (4, 16)):
        assert float(additive.seconds(requests, rows)) == pytest.approx(0.010 + 0.002 * requests + 0.001 * rows)
    record = json.loads((context.output / "costs.json").read_text())
    assert record["measures"].startswith("a whole round of the server")
    assert record["conditions"]["engine"] == {
        "name": "sglang", "version": "0.5.23", "mode": "compact", "precision": "float32", "device": "cuda",
        "attention_backend": "None", "tensor_parallel": None, "proposals": M,
    }  # fmt: skip
    assert {len(c["seconds"]) for c in record["cells"]} == {6}
    assert Noting.shares[-1] is None
    assert (context.output / "costs.png").exists()


def test_static_gives_rounds_by_rows_alone(url: str, tmp_path: Path) -> None:
    noting("static")
    context = run(tmp_path, params(url))
    by_rows = read_table(context.output / "sps.json")
    assert isinstance(by_rows, RowTable)
    assert by_rows.rows == (4, 8, 16)
    assert by_rows.rounds_per_second == pytest.approx((1 / 0.016, 1 / 0.022, 1 / 0.034))
    assert not (context.output / "sps_additive.json").exists()
    assert Noting.shares == []
    assert (context.output / "costs.png").exists()


def test_a_server_that_tells_no_costs_is_refused_with_all_reasons(url: str, tmp_path: Path) -> None:
    Noting.payload = {}
    with pytest.raises(StageError, match="notes no rounds: start it with SGLANG_DSPARK_ENABLE_SPS_RECORD=1"):
        run(tmp_path, params(url))
    noting("cap-accept", components=["core"], simulate_acc_len=None)
    with pytest.raises(StageError, match=r"no step_cpu_time.*accepts proposals.*None.*mode cap-accept.*all the same"):
        run(tmp_path, params(url))
    noting("static")
    with pytest.raises(StageError, match="0 rounds with 8 requests, expected 12: raise --max-running-requests"):
        run(tmp_path, params(url, requests=(1, 8)))
