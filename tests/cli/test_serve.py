"""``serve`` with a program in the place of SGLang's: the command, the settings read back, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specflow.config.export import ExportParams
from specflow.serving.log_tail import LogTail
from specflow.serving.settings import Setting, effective_settings, expected_settings
from specflow.stages import export
from tests.cli.support import specflow
from tests.serving.helpers import random_drafter
from tests.stages.pipeline_helpers import FakeContext, inputs, tiny_target

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
PROGRAM = """#!{python}
import http.server, json, os, subprocess, sys, time
words = sys.argv[3:]
given = dict(zip(words[::2], words[1::2]))
print("child", subprocess.Popen(["sleep", "1000"]).pid, flush=True)
if "--fail" in given:
    print("the reason", flush=True)
    sys.exit(3)
if "--hang" in given:
    time.sleep(1000)
print("mode", os.environ.get("SGLANG_RAGGED_VERIFY_MODE"), os.environ.get("EXTRA"), flush=True)
info = {{name[2:].replace("-", "_"): value for name, value in given.items()}}
info["speculative_num_draft_tokens"] = int(given.get("--told", info["speculative_num_draft_tokens"]))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = json.dumps(info if self.path == "/server_info" else {{}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        pass

print("fired up", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``target``, ``export`` and ``python``."""
    root = tmp_path_factory.mktemp("serve")
    target = tiny_target(root)
    context = FakeContext(root / "run")
    export.run(inputs(target, random_drafter(root / "drafter", target)), ExportParams(dtype="float32"), context)
    context.output.rename(root / "export")
    python = root / "python"
    python.write_text(PROGRAM.format(python=sys.executable))
    python.chmod(0o755)
    return root


def arguments(root: Path, log: Path, *further: str) -> list[str]:
    port = str(30000 + os.getpid() % 20000)
    options, _, flags = " ".join(further).partition("-- ")
    words = ["serve", str(root / "export"), "--target", str(root / "target"), "--python", str(root / "python")]
    return [*words, "--log", str(log), "--port", port, *options.split(), *(["--", *flags.split()] if flags else [])]


@pytest.fixture
def started(root: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "specflow", *arguments(root, tmp_path / "log")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def until_ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith("ready at"):
        line = process.stdout.readline()
        assert line, (lines, process.stderr.read() if process.stderr else "")
        lines.append(line.strip())
    return lines


def child_of(log: Path) -> int:
    return int(re.findall(r"child (\d+)", log.read_text())[0])


def wait_until_gone(*pids: int) -> None:
    end = time.monotonic() + SECONDS
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < end, pids
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_says_what_it_runs_with_and_ends_with_all_its_processes(
    started: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    lines = until_ready(started)
    assert "speculative_algorithm: DFLASH" in lines
    assert "speculative_num_draft_tokens: 4" in lines
    assert "dtype: float32" in lines
    child = child_of(tmp_path / "log")
    server = psutil.Process(child).ppid()
    started.send_signal(number)
    _, err = started.communicate(timeout=SECONDS)
    assert started.returncode == 130
    wait_until_gone(child, server)
    assert "fired up" in err  # its log is shown


def test_the_command_alone(root: Path) -> None:
    done = specflow("serve", root / "export", "--target", root / "target", "--print", "--", "--tp-size", "8")
    place = f"{root}/export/draft"
    assert done.stdout.split() == [
        "python", "-m", "sglang.launch_server", "--model-path", f"{root}/target", "--speculative-algorithm", "DFLASH",
        "--speculative-draft-model-path", place, "--speculative-num-draft-tokens", "4", "--dtype", "float32",
        "--host", "127.0.0.1", "--port", "30000", "--tp-size", "8",
    ]  # fmt: skip


def test_kill_leaves_nothing_either(started: subprocess.Popen[str], tmp_path: Path) -> None:
    """Nothing of ours runs any more that could end the server: the kernel must."""
    until_ready(started)
    child = child_of(tmp_path / "log")
    server = psutil.Process(child).ppid()
    started.kill()
    started.wait(timeout=SECONDS)
    wait_until_gone(child, server)


def test_variables_reach_the_server(root: Path, tmp_path: Path) -> None:
    done = specflow(*arguments(root, tmp_path / "log", "--env EXTRA=a=b -- --told 16"))
    assert done.exit_code == 1
    assert "mode None a=b" in (tmp_path / "log").read_text()
    printed = specflow("serve", root / "export", "--target", root / "target", "--print", "--env", "EXTRA=a b")
    assert printed.stdout.startswith("EXTRA='a b' python -m sglang.launch_server ")
    for words, said in ((("--env", "EXTRA"), "NAME=VALUE"), (("--mode", "compact"), "no confidence")):
        refused = specflow("serve", root / "export", "--target", root / "target", "--print", *words)
        assert refused.exit_code == 2
        assert said in refused.stderr


def test_a_start_that_fails_leaves_nothing(root: Path, tmp_path: Path) -> None:
    done = specflow(*arguments(root, tmp_path / "log", "-- --fail 1"))
    assert done.exit_code == 1
    assert "exit code 3" in done.stderr
    assert "the reason" in done.stderr
    wait_until_gone(child_of(tmp_path / "log"))


def test_a_start_that_takes_too_long_leaves_nothing(root: Path, tmp_path: Path) -> None:
    done = specflow(*arguments(root, tmp_path / "log", "--start-timeout 2 -- --hang 1"))
    assert done.exit_code == 1
    assert "not ready after 2 s" in done.stderr
    wait_until_gone(child_of(tmp_path / "log"))


def test_a_server_that_runs_otherwise_is_ended(root: Path, tmp_path: Path) -> None:
    done = specflow(*arguments(root, tmp_path / "log", "-- --told 16"))
    assert done.exit_code == 1
    assert "speculative_num_draft_tokens: expected 4, found 16" in done.stderr
    wait_until_gone(child_of(tmp_path / "log"))


def test_what_the_linter_finds_is_not_served(root: Path, tmp_path: Path) -> None:
    config = json.loads((root / "export/draft/config.json").read_text())
    other = tmp_path / "draft"
    other.mkdir()
    for path in (root / "export/draft").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    words: list[str | Path] = ["serve", other, "--target", root / "target", "--url", "http://127.0.0.1:9"]
    refused = specflow(*words)
    assert refused.exit_code == 1
    assert "[positions]" in refused.stderr
    assert "--no-lint" in refused.stderr
    tried = specflow(*words, "--no-lint")
    assert tried.exit_code == 1
    assert "does not answer" in tried.stderr


@pytest.mark.parametrize(
    ("further", "said"),
    [
        (["--target", "TARGET"], "--python"),
        (["--python", "x"], "--target"),
        (["--target", "TARGET", "--python", "x", "--", "--speculative-num-draft-tokens", "9"], "that are generated"),
    ],
)
def test_bad_input_starts_nothing(root: Path, further: list[str], said: str) -> None:
    done = specflow("serve", root / "export", *(str(root / "target") if w == "TARGET" else w for w in further))
    assert done.exit_code == 2
    assert said in done.stderr


def test_settings_by_their_names(tmp_path: Path) -> None:
    flags = {"--speculative-algorithm": "DSPARK", "--speculative-dspark-block-size": "7", "--dtype": "bfloat16"}
    expected = expected_settings(flags, {"num_proposals": 7})
    assert expected["speculative_num_draft_tokens"] == "8"
    found = effective_settings(
        {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": 7, "dtype": "torch.bfloat16"}, expected
    )
    assert [s.name for s in found if not s.same] == ["speculative_num_draft_tokens"]
    here = str(tmp_path)
    for place, same in ((here, True), ("hub/name", True), ("None", False)):
        assert Setting(name="model_path", expected=here, found=place).same is same


def test_every_line_of_a_log_comes_once(tmp_path: Path) -> None:
    tail, path = LogTail(tmp_path / "log"), tmp_path / "log"
    assert tail.new_lines() == []
    path.write_bytes(b"one\n 1%\r 50%\r100%\ntw")
    assert tail.new_lines() == ["one", "100%"]
    with path.open("ab") as file:
        file.write(b"o\n")
    assert tail.new_lines() == ["two"]
    assert tail.new_lines() == []
