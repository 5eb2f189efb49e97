"""Two processes train what one trains; a killed rank ends the run cleanly, and the next run continues it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from specflow.config.drafter import TrainParams
from specflow.drafters.dflash.params import Params
from specflow.stages.contract import StageError
from specflow.training.tensor_file import read_tensors
from tests.stages.train_helpers import make_target, run, write_features

torch.set_num_threads(1)
SILENT = (0, 3, 4)
"""Of the six training documents, those without an anchor: a rank of one document often has none."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target = make_target(tmp_path_factory.mktemp("target"))
    features = tmp_path_factory.mktemp("features")
    return target, write_features(features, target, silent=SILENT)


def params(**train: Any) -> Params:
    defaults: dict[str, Any] = {
        "steps": 12, "documents_per_step": 2, "anchors_per_document": 4, "learning_rate": 3e-3, "evaluate_every": 6,
        "checkpoint_every": 4, "log_every": 1, "threads": 1,
    }  # fmt: skip
    return Params(method="dflash", num_layers=1, block_size=4, train=TrainParams(**{**defaults, **train}))


Trained = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[dict[str, Any]], dict[str, Any]]


def trained(
    place: Path, data: tuple[Path, Path], on_advance: Callable[[float], None] = lambda amount: None, **train: Any
) -> Trained:
    """Drafter, last state, curve without times, metrics."""
    metrics, context = run(place, *data, params(**train), on_advance)
    lines = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "anchors_per_second", "context_tokens_per_second")
    curve = [{k: v for k, v in line.items() if k not in timed} for line in lines]
    last = read_tensors(sorted((context.scratch / "training").glob("step-*"))[-1])[0]
    del last["random.cpu"]  # nothing draws from it; it is what the process began with
    return load_file(context.output / "drafter" / "model.safetensors"), last, curve, dict(metrics)


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, data: tuple[Path, Path]) -> Trained:
    """One process whose passes are the ranks' shares: the same sums in the same order."""
    return trained(tmp_path_factory.mktemp("alone"), data, documents_per_pass=1)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, data: tuple[Path, Path]) -> Trained:
    return trained(tmp_path_factory.mktemp("both"), data, ranks=2)


def test_two_ranks_equal_one_bit_for_bit(alone: Trained, both: Trained) -> None:
    assert equal(both[0], alone[0])
    assert equal(both[1], alone[1])
    assert both[2] == alone[2]
    counted = ("anchors", "labels", "documents_without_anchor", "best_step", "final_loss", "tau_heldout")
    assert {name: both[3][name] for name in counted} == {name: alone[3][name] for name in counted}
    assert both[3]["documents_without_anchor"] == 12  # half of 24
    assert (both[3]["ranks"], alone[3]["ranks"]) == (2, 1)


def test_shared_weights_train_the_same(tmp_path: Path, data: tuple[Path, Path], alone: Trained) -> None:
    """FSDP sums the norm of the gradients in another order."""
    weights, state, curve, _ = trained(tmp_path, data, ranks=2, parallel="fsdp")
    assert weights.keys() == alone[0].keys()
    for found, expected in ((weights, alone[0]), (state, alone[1])):
        for name, value in expected.items():
            assert (found[name].float() - value.float()).norm() <= 1e-5 * value.float().norm() + 1e-9, name
    for line, wanted in zip(curve, alone[2], strict=True):
        assert line.keys() == wanted.keys()
        assert "loss" not in wanted or line["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert line.get("tau") == wanted.get("tau")


def children() -> list[psutil.Process]:
    """Ranks: other processes that multiprocessing keeps are no business of ours."""
    return [p for p in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]


def test_a_killed_rank_ends_the_run_and_the_next_one_continues_it(
    tmp_path: Path, data: tuple[Path, Path], both: Trained
) -> None:
    steps = 0.0

    def kill_one(amount: float) -> None:
        nonlocal steps
        steps += amount
        if steps == 7:
            os.kill(max(child.pid for child in children()), signal.SIGKILL)

    with pytest.raises(StageError, match=r"rank [01] of 2 was ended by signal 9; the others were stopped"):
        trained(tmp_path, data, kill_one, ranks=2)
    assert children() == []
    weights, state, curve, _ = trained(tmp_path, data, documents_per_pass=1)  # alone, and the same all the same
    assert equal(weights, both[0])
    assert equal(state, both[1])
    assert curve == both[2]


def test_torchrun_trains_a_job_and_the_stage_finishes(tmp_path: Path, data: tuple[Path, Path], both: Trained) -> None:
    with pytest.raises(StageError, match=r"on every machine run\n  torchrun .* -m specflow.training") as told:
        trained(tmp_path, data, launcher="torchrun", ranks=2)
    job = str(told.value).split("-m specflow.training ")[1].split("\n")[0]
    started = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "specflow.training", job]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'kernels'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *started], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    weights, state, curve, _ = trained(tmp_path, data, launcher="torchrun", ranks=2)
    assert equal(weights, both[0])
    assert equal(state, both[1])
    assert curve == both[2]


def test_another_number_of_ranks_continues(tmp_path: Path, data: tuple[Path, Path], both: Trained) -> None:
    class Stop(BaseException):
        pass

    steps = 0.0

    def stop(amount: float) -> None:
        nonlocal steps
        steps += amount
        if steps == 6:
            raise Stop

    with pytest.raises(Stop):
        trained(tmp_path, data, stop, documents_per_pass=1)
    weights, state, curve, _ = trained(tmp_path, data, ranks=2)
    assert equal(weights, both[0])
    assert equal(state, both[1])
    assert curve == both[2]
