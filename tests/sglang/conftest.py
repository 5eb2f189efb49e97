"""One real SGLang server for all tests of this directory, on the CPU, over the tiny target in fp32.

Skipped where ``SPECFLOW_SGLANG_PYTHON`` does not name the python of an environment with SGLang.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specflow.targets.sglang.process import SglangProcess
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.pipeline_helpers import tiny_target

VARIABLE = "SPECFLOW_SGLANG_PYTHON"
CPU_FLAGS = ("--device", "cpu", "--max-total-tokens", "8192", "--max-running-requests", "4")
LAYERS = (0, 1, 2)
START_SECONDS = 500.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.sglang)
            item.add_marker(pytest.mark.timeout(900))
            if not os.environ.get(VARIABLE):
                item.add_marker(pytest.mark.skip(reason=f"{VARIABLE} names no python with SGLang"))


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    return Path(os.environ[VARIABLE])


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target, and documents with greedy answers of it."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("sglang")
    target = Target.load(tiny_target(root).path, precision="fp32", threads=1)
    tokens_artifact(root / "tokens", greedy_documents(target, shared=6, other=10))
    return root


@pytest.fixture(scope="session")
def server(sglang_python: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangProcess]:
    """Started as a user may start it: with the prefix cache on, and the convention that the stage does not choose."""
    arguments = [
        "--model-path", str(root / "target"), "--dtype", "float32", "--enable-return-hidden-states",
        "--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3",
        "--return-aux-hidden-state-layer-ids", *map(str, LAYERS), "--chunked-prefill-size", "-1",
        "--max-prefill-tokens", "4096", *CPU_FLAGS,
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("server") / "sglang.log"
    with SglangProcess(sglang_python, arguments, log=log, start_timeout=START_SECONDS) as process:
        yield process
