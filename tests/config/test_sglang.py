"""``capture.sglang``: addresses, the interpreter, flags that may be given, and what is not in the key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specflow.config.capture import CaptureParams
from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides
from specflow.stages.capture import check
from specflow.workflow.keys import key_parameters
from tests.config.support import VALID, problems, write


def section(path: Path, *settings: str) -> CaptureParams:
    return load_config(path, parse_overrides(settings)).config.capture


@pytest.mark.parametrize("written", ["http://host:30000", "http://host:30000/", "http://host:30000/v1/"])
def test_an_address_is_the_root_of_the_server(tmp_path: Path, written: str) -> None:
    assert section(write(tmp_path), f"capture.sglang.url={written}").sglang.url == "http://host:30000"


@pytest.mark.parametrize("written", ["host:30000", "ftp://host", "http://me:secret@host"])
def test_what_is_no_address(tmp_path: Path, written: str) -> None:
    (problem,) = problems(write(tmp_path), f"capture.sglang.url={written!r}")
    assert problem.path == "capture.sglang.url"


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    text = VALID.replace("  layer_ids: [1, 2]", "  layer_ids: [1, 2]\n  sglang: {url: 'http://me:secret@host'}")
    (problem,) = problems(write(tmp_path, text))
    assert problem.path == "capture.sglang.url"
    assert "secret" not in str(problem)


def test_the_link_of_an_environment_is_not_followed(tmp_path: Path) -> None:
    """Its target is the python of the system, which knows nothing of the environment."""
    link = tmp_path / "env/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    assert section(write(tmp_path), "capture.sglang.python=env/bin/python").sglang.python == link


@pytest.mark.parametrize("written", ["none/python", "config.yaml", "."])
def test_what_is_no_interpreter(tmp_path: Path, written: str) -> None:
    (problem,) = problems(write(tmp_path), f"capture.sglang.python={written}")
    assert (problem.path, problem.message) == ("capture.sglang.python", "no such program")


@pytest.mark.parametrize("flag", ["--dtype", "--model-path=x", "--speculative-algorithm", "--quantization", "--port"])
def test_flags_that_the_stage_sets_are_refused(tmp_path: Path, flag: str) -> None:
    (problem,) = problems(write(tmp_path), f"capture.sglang.launch_flags=[--tp-size, '2', {flag}]")
    assert problem.found == flag.partition("=")[0]


def found(path: Path, *settings: str) -> list[tuple[str, str]]:
    return [(p.where, p.found) for p in check(section(path, "capture.engine=sglang", *settings))]


def test_the_engine_needs_one_place(tmp_path: Path) -> None:
    path, url, python = write(tmp_path), "capture.sglang.url=http://h:1", f"capture.sglang.python={sys.executable}"
    assert found(path) == [("sglang", "neither url nor python")]
    assert found(path, url, python) == [("sglang", "both url and python")]
    assert found(path, url) == found(path, python) == []
    assert found(path, url, "capture.sglang.launch_flags=[--tp-size, '2']") == [("sglang.launch_flags", "--tp-size 2")]
    assert found(path, url, "capture.precision=packed") == [("precision", "packed")]
    assert list(check(section(path))) == []


def test_where_and_how_fast_is_not_in_the_key(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "key").write_text("sk-secret")

    def key(*settings: str) -> object:
        return key_parameters(section(path, *settings))

    first = key("capture.engine=sglang", "capture.sglang.url=http://one:1")
    assert first == key(
        "capture.engine=sglang",
        f"capture.sglang.python={sys.executable}",
        "capture.sglang.api_key_file=key",
        "capture.sglang.memory_gb=7",
        "capture.sglang.concurrency=2",
        "capture.sglang.retries=1",
        "capture.sglang.backoff=0.5",
        "capture.sglang.timeout=3",
        "capture.sglang.start_timeout=4",
    )
    assert first != key("capture.sglang.url=http://one:1")  # another engine
    assert first != key("capture.engine=sglang", "capture.sglang.launch_flags=[--tp-size, '2']")
