"""``specflow measure`` against a running server: figures, files, exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from specflow.config.load_result import LoadResult
from tests.cli.support import document, specflow
from tests.serving.canned import CannedServer, chatted
from tests.serving.virtual_time import Script

FAST, SLOW = chatted(5, every=0.002), chatted(5, every=0.01)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"question {i}"}]} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_with_a_baseline(prompts: Path, tmp_path: Path) -> None:
    with CannedServer(lambda n, b: FAST) as fast, CannedServer(lambda n, b: SLOW) as slow:
        found = document(
            specflow(
                "measure", f"service={prompts}", "--url", fast.url, "--baseline-url", slow.url, "--concurrency", "1,2",
                "--repeats", "2", "--max-new-tokens", "5", "--set", "sampling.greedy.temperature=0", "--set",
                "sampling.hot.temperature=0.7", "--json", "--output", tmp_path / "load.json", "--csv",
                tmp_path / "load.csv",
            )
        )  # fmt: skip
        assert {body["temperature"] for body in fast.bodies} == {0, 0.7}
    result = LoadResult.model_validate_json((tmp_path / "load.json").read_text())
    assert json.loads(result.model_dump_json()) == found
    assert result.complete
    assert [(c.dataset, c.sampling, c.concurrency) for c in result.cells] == [
        ("service", name, c) for name in ("greedy", "hot") for c in (1, 2)
    ]
    for cell in result.cells:
        assert cell.speedup is not None
        assert cell.drafter is not None
        assert cell.baseline is not None
        # Of what was measured: how quick this machine was just now is no property of the command.
        measured = cell.drafter.tokens_per_request_second / cell.baseline.tokens_per_request_second
        assert cell.speedup.ratio == pytest.approx(measured)
    assert all(c.drafter and c.drafter.tau is None for c in result.cells)
    assert result.unproven
    with (tmp_path / "load.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8


def test_a_single_server_has_figures_and_no_speed_up(prompts: Path) -> None:
    with CannedServer(lambda n, b: FAST) as server:
        done = specflow("measure", prompts, "--url", f"{server.url}/v1", "--concurrency", "1", "--repeats", "1")
    assert done.exit_code == 0
    assert "questions" in done.stdout
    assert "service" not in done.stdout


def test_failures_are_no_figures_and_exit_code_1(prompts: Path) -> None:
    with CannedServer(lambda n, b: FAST if n < 5 else Script(status=500)) as server:
        done = specflow("measure", prompts, "--url", server.url, "--concurrency", "1", "--repeats", "2", "--json",
                        "--warmup-requests", "1")  # fmt: skip
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert not found["complete"]
    assert "http_500 (2)" in found["error"]
    (cell,) = found["cells"]
    assert cell["drafter"]["requests"] == 3  # the first repeat alone


def test_bad_input_is_said_all_at_once(prompts: Path, tmp_path: Path) -> None:
    done = specflow("measure", tmp_path / "none", tmp_path / "nothing", "--url", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert done.stderr.count("no such file") == 2
    done = specflow("measure", prompts, "--url", "nowhere", "--concurrency", "4,1")
    assert done.exit_code == 2
    assert "not the address of a server" in done.stderr
    assert "out of order" in done.stderr
    done = specflow("measure", prompts, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "does not answer" in done.stderr
