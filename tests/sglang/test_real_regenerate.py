"""``regenerate`` with a real SGLang server: the embedded engine's answers, and no row asked for twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from specflow.config.regenerate import PromptSource, RegenerateParams
from specflow.stages import regenerate
from specflow.targets.sglang.process import SglangProcess
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target, write_lines

SPECIAL = re.compile(r"<\|\w+\|>")
ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"row {n} " + "of a longer prompt " * (n % 4) for n in range(20)]


def params(folder: Path, server: SglangProcess | None, *, max_new_tokens: int = 24) -> RegenerateParams:
    def row(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    files = {
        "train": write_lines(folder / "prompts/train.jsonl", [row(t) for t in TEXTS]),
        "heldout": write_lines(folder / "prompts/heldout.jsonl", [row("held out")]),
    }
    return RegenerateParams.model_validate(
        {
            **{split: [PromptSource(path=path, kind="k")] for split, path in files.items()},
            "max_new_tokens": max_new_tokens,
            "precision": "fp32",
            "threads": 1,
            "engine": "embedded" if server is None else "openai",
            "server": {} if server is None else {"url": f"{server.url}/v1", "concurrency": 2, "retries": 2},
        }
    )


def rows(root: Path, context: FakeContext, section: RegenerateParams) -> list[dict[str, Any]]:
    regenerate.run(inputs(tiny_target(root)), section, context)
    return [json.loads(line) for line in (context.output / "conversations.jsonl").read_text().splitlines()]


def asked(server: SglangProcess) -> int:
    """Chat requests that arrived, by the server's own log."""
    return server.log.read_text(errors="replace").count("POST /v1/chat/completions")


def settled(server: SglangProcess) -> int:
    """The same, when nothing more arrives: the log has a request only when it was answered or cut off."""
    count = -1
    while count != asked(server):
        count = asked(server)
        time.sleep(1.0)
    return count


def test_greedy_answers_are_the_embedded_engine_s(root: Path, server: SglangProcess, tmp_path: Path) -> None:
    embedded = rows(root, FakeContext(tmp_path / "embedded"), params(tmp_path, None))
    served = rows(root, FakeContext(tmp_path / "served"), params(tmp_path, server))
    assert len(served) == len(TEXTS) + 1
    same = ("id", "split", "prompt_ids", "answer_ids", "finish", "greedy", "thinking")
    for ours, theirs in zip(served, embedded, strict=True):
        assert {k: ours.get(k) for k in same} == {k: theirs.get(k) for k in same}
        assert ours["answer_ids"]
        assert ours["messages"][:-1] == theirs["messages"][:-1]
        # The server leaves special tokens out of its text; a random model says some. The ids above have them.
        assert ours["messages"][-1]["content"] == SPECIAL.sub("", theirs["messages"][-1]["content"])
    assert {row["finish"] for row in served} <= {"length", "stop"}
    assert len({tuple(row["answer_ids"]) for row in served}) > 10  # they say different things


def test_a_killed_stage_asks_the_real_server_for_no_answered_row_again(
    root: Path, server: SglangProcess, tmp_path: Path
) -> None:
    section = params(tmp_path, server, max_new_tokens=64)
    journal = tmp_path / "work/scratch/answers.jsonl"
    before = settled(server)
    command = [sys.executable, "-m", "tests.stages.regenerate_process", str(root), str(tmp_path / "work")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, section.model_dump_json()], cwd=ROOT, env=environment)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 6:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes().count(b"\n")
    assert 6 <= kept < len(TEXTS) + 1, "it ended before it could be killed"
    middle = settled(server)
    assert kept <= middle - before <= kept + 2  # two were in flight
    resumed = rows(root, FakeContext(tmp_path / "work"), section)
    assert settled(server) - middle == len(TEXTS) + 1 - kept
    whole = rows(root, FakeContext(tmp_path / "whole"), section)
    assert resumed == whole
