"""Exports behind a real SGLang server: greedy text and accepted counts are the embedded engine's, for every method."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.config.parity import ParityParams
from specflow.config.tree import TreeParams
from specflow.serving.monitor import read
from specflow.stages import parity
from specflow.stages.contract import StageError
from tests.cli.support import document, specflow
from tests.serving.trained import ANSWER, PROMPTS, SECTIONS, Trained, make_trained
from tests.sglang.conftest import CPU_FLAGS, START_SECONDS
from tests.sglang.test_real_capture import processes_in
from tests.stages.pipeline_helpers import FakeContext, inputs

ROOT = Path(__file__).resolve().parents[2]
NO_FLASH = ("--speculative-draft-attention-backend", "torch_native", "--disable-overlap-schedule")
DRAFT_FLAGS = {
    "dflash": NO_FLASH,
    "dflash2": NO_FLASH,
    "dspark": NO_FLASH,
    "eagle": ("--disable-overlap-schedule",),
    "eagle3": ("--disable-overlap-schedule",),
}
"""What a method needs on a CPU beside the flags of every server there."""
TREE = TreeParams(steps=3, topk=2, num_draft_tokens=7)
TREES: dict[str, dict[str, Any]] = {
    "eagle+tree": {"method": "eagle", "draft_vocab_size": 280},
    "eagle3+tree": {"method": "eagle3", "draft_vocab_size": 280},
}
"""Methods that are served with trees, too, here with drafters that cannot propose every token."""


@pytest.fixture(scope="module", params=sorted([*SECTIONS, *TREES]))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp(request.param)
    if request.param in TREES:
        return make_trained(root, tree=TREE, **TREES[request.param])
    return make_trained(root, request.param)


@pytest.fixture
def served(made: Trained, sglang_python: Path, tmp_path: Path) -> Iterator[list[str]]:
    """``specflow serve`` in a process of its own, up to its address; ended as a person would end it."""
    folder = tmp_path / "served"
    folder.mkdir()
    port = str(20000 + os.getpid() % 20000)
    command = [
        sys.executable, "-m", "specflow", "serve", str(made.export.path), "--target", str(made.target.path),
        "--python", str(sglang_python), "--port", port, "--log", str(folder / "sglang.log"),
        "--start-timeout", str(START_SECONDS), "--", "--enable-metrics", *CPU_FLAGS,
        *DRAFT_FLAGS[made.drafter.item or ""],
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "PYTHONUNBUFFERED": "1"}
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment, cwd=ROOT)
    lines: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("ready at"):
                break
        assert lines, (folder / "err").read_text()[-3000:]
        assert lines[-1].startswith("ready at"), (folder / "err").read_text()[-3000:]
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3  # the server, its scheduler, its detokeniser
        yield [*lines, f"http://127.0.0.1:{port}"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
        assert psutil.wait_procs(children, timeout=20)[1] == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def section(**sglang: object) -> ParityParams:
    return ParityParams.model_validate(
        {
            "sglang": {"retries": 0, "timeout": 300, "start_timeout": START_SECONDS, **sglang},
            "max_new_tokens": ANSWER,
            "transformers_prompts": PROMPTS,
            "threads": 1,
        }
    )


def test_lint_serve_and_parity(made: Trained, served: list[str], tmp_path: Path) -> None:
    linted = document(specflow("lint", made.export.path, "--target", made.target.path, "--json"))
    assert linted["findings"] == []
    manifest = json.loads(made.export.file("draft/manifest.json").read_text())
    tree = manifest.get("tree")
    rows = tree["num_draft_tokens"] if tree else manifest["num_proposals"] + 1
    assert f"speculative_num_draft_tokens: {rows}" in served
    context = FakeContext(tmp_path)
    given = inputs(made.target, made.drafter, made.export, made.tokens)
    before = read(served[-1])
    metrics = parity.run(given, section(url=served[-1]), context)
    found = read(served[-1], since=before)
    record = json.loads((context.output / "parity.json").read_text())
    checks = {c["name"]: c for c in record["checks"]}
    assert checks["greedy"]["numbers"]["differing_prompts"] == 0
    assert checks["transformers"]["numbers"]["prompts"] == PROMPTS
    counts = checks["acceptance-by-position"]["numbers"]
    assert counts["served"] == counts["embedded"]
    assert counts["differing_prompts"] == 0
    assert metrics["working"]["accept_length"] > 1.3
    assert record["engine"]["version"] == "0.5.23"
    answers = [json.loads(line) for line in (context.scratch / "served.jsonl").read_text().splitlines()]
    tokens, rounds = sum(len(a["tokens"]) for a in answers), sum(sum(a["accepted"]) for a in answers)
    assert found.window is not None
    assert (found.window.requests, found.window.tokens, found.rounds) == (len(answers), tokens, rounds)
    assert found.tau == pytest.approx((tokens - len(answers)) / rounds)
    assert found.gauges["draft_tokens"] == rows
    assert record["tree"] == tree


def test_a_draft_that_lost_a_tensor_serves_rightly_and_is_refused_with_the_cause(
    made: Trained, sglang_python: Path, tmp_path: Path
) -> None:
    """SGLang starts, answers every prompt as the target would, and says nothing."""
    if "tree" in json.loads(made.export.file("draft/manifest.json").read_text()):
        pytest.skip("the same draft as without trees")
    broken = replace(made.export, path=Path(shutil.copytree(made.export.path, tmp_path / "export")))
    place = broken.file("draft") / "model.safetensors"
    tensors = load_file(str(place))
    save_file({("fc.weigth" if name == "fc.weight" else name): t for name, t in tensors.items()}, str(place))
    context = FakeContext(tmp_path / "run")
    flags = [*CPU_FLAGS, *DRAFT_FLAGS[made.drafter.item or ""]]
    with pytest.raises(StageError, match=r"the linter found \[tensors\] fc.weight(?s:.)*stays random"):
        parity.run(
            inputs(made.target, made.drafter, broken, made.tokens),
            section(python=sglang_python, launch_flags=flags),
            context,
        )
    assert any(m.startswith("passed: The server's greedy output equals plain decoding") for m in context.messages)
    assert any(m.startswith("FAILED: The server accepts at every position") for m in context.messages)
    assert not processes_in(context.scratch)
