"""``doctor``: findings, levels and exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specflow.cli import probes
from tests.cli.support import document, specflow


def test_this_machine_can_run(tmp_path: Path) -> None:
    result = specflow("doctor", "--store", tmp_path / "store", "--json")
    assert result.exit_code == 0, result.output
    checks = {check["name"]: check for check in document(result)["checks"]}
    assert checks["python"]["found"].startswith(sys.version.split()[0])
    assert checks["torch"]["found"].startswith("2.")
    assert checks["prefect home"]["found"] == str(tmp_path / "store" / ".prefect")
    assert not (tmp_path / "store").exists()
    assert set(checks) > {"bf16", "threads", "memory", "disk", "transformers", "zarr", "prefect"}


def test_a_failure_is_told_with_what_to_do_and_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "REQUIRED", {"transformers": (99,), "no-such-package": (1,)})
    result = specflow("doctor", "--store", tmp_path)
    assert result.exit_code == 1
    assert "-> needs 99 or newer: make setup" in result.stdout
    assert "fail no-such-package" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 failed"


def test_a_probe_that_raises_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> probes.Finding:
        raise OSError("no such counter")

    monkeypatch.setattr(probes, "memory", broken)
    result = specflow("doctor", "--store", tmp_path, "--json")
    assert result.exit_code == 1
    [failed] = [check for check in document(result)["checks"] if check["level"] == "fail"]
    assert failed["found"] == "OSError: no such counter"


def test_sglang_in_its_own_environment(tmp_path: Path) -> None:
    missing = probes.sglang(tmp_path / "python")
    assert (missing.level, missing.name) == ("fail", "sglang")
    without = probes.sglang(Path(sys.executable))
    assert without.level == "fail"
    assert without.todo.endswith("pip install sglang==0.5.23")
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho 0.5.23\n")
    fake.chmod(0o755)
    assert probes.sglang(fake).level == "ok"
    fake.write_text("#!/bin/sh\necho 0.4.0\n")
    assert probes.sglang(fake).level == "warn"


def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert probes.disk(tmp_path / "store").level == "fail"
