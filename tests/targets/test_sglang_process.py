"""Starting a server and ending all of it, with a program in the place of SGLang's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from specflow.targets.retrying import ServerError
from specflow.targets.sglang.process import SglangProcess

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """#!{python}
import http.server, subprocess, sys, time
assert sys.argv[1:3] == ["-m", "sglang.launch_server"], sys.argv
if "--fail" in sys.argv:
    print("first line", *range(100), "the reason", sep="\\n")
    sys.exit(3)
if "--hang" in sys.argv:
    time.sleep(1000)
child = subprocess.Popen(["sleep", "1000"])
print("child", child.pid, flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    return path


def started(python: Path, tmp_path: Path, *arguments: str, timeout: float = 30.0) -> SglangProcess:
    return SglangProcess(python, arguments, log=tmp_path / "logs/sglang.log", start_timeout=timeout)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(*pids: int) -> None:
    end = time.monotonic() + 20
    while not all(map(gone, pids)):
        assert time.monotonic() < end, pids
        time.sleep(0.02)


def child_of(log: Path) -> int:
    return int(log.read_text().split()[1])


def test_it_answers_inside_and_is_gone_after_with_its_children(python: Path, tmp_path: Path) -> None:
    with started(python, tmp_path) as server:
        assert httpx.get(server.url).is_success
        child = child_of(server.log)
        assert psutil.Process(child).cwd() == str(tmp_path / "logs")
        assert server.died() is None
    assert not server.running
    wait_until_gone(child)
    server.end()


def test_one_that_fails_says_why(python: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match=r"exit code 3(?s:.)*the reason") as caught,
        started(python, tmp_path, "--fail"),
    ):
        pass
    assert "first line" not in str(caught.value)


def test_one_that_takes_too_long_is_ended(python: Path, tmp_path: Path) -> None:
    server = started(python, tmp_path, "--hang", timeout=0.6)
    with pytest.raises(ServerError, match="not ready after 1 s"), server:
        pass
    assert not server.running


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"exit code 1(?s:.)*No such file"), started(tmp_path / "none", tmp_path):
        pass


def test_it_ends_with_a_process_that_is_killed(python: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from specflow.targets.sglang.process import SglangProcess\n"
        "with SglangProcess(Path(sys.argv[1]), [], log=Path(sys.argv[2]), start_timeout=30) as s:\n"
        "    print(s._process.pid, flush=True); time.sleep(1000)"
    )
    log = tmp_path / "logs/sglang.log"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    command = [sys.executable, "-c", script, str(python), str(log)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until_gone(server, child_of(log))


def test_nothing_outlives_the_process_beside_it(python: Path, tmp_path: Path) -> None:
    with started(python, tmp_path) as server:
        child = child_of(server.log)
        below = psutil.Process(child).ppid()
        beside = psutil.Process(below).ppid()
        os.kill(beside, signal.SIGKILL)
        wait_until_gone(beside, below)
        assert "signal 9" in str(server.died())
    wait_until_gone(child)
