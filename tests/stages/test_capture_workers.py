"""Capture in several processes: the same bytes, and a worker that dies fails the stage by name."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.data.documents import TOKENS_FILE
from specflow.features.capture import Capturer
from specflow.features.probes import ProbeFailure
from specflow.features.store import FeatureReader
from specflow.features.workers import _answer, _Worker
from specflow.stages.contract import StageError
from specflow.targets.device import choose_device, to_host
from specflow.targets.target import Target, TargetError
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.capture_process import PARAMS, run
from tests.stages.pipeline_helpers import FakeContext, FakeProgress, state_fingerprint, tiny_target, tree

TWO = PARAMS.model_copy(update={"workers": 2, "shard_tokens": 120, "batch_tokens": 64})
ONE = TWO.model_copy(update={"workers": 1})


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("artifacts")
    target = Target.load(tiny_target(root).path, precision="fp32", threads=1)
    tokens_artifact(root / "tokens", greedy_documents(target, shared=8, other=12))
    return root


@pytest.fixture(scope="module")
def alone(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Any]:
    """Bytes and metrics of one process."""
    context = FakeContext(tmp_path_factory.mktemp("alone"))
    metrics = run(artifacts, context, ONE)
    return tree(context.output), metrics


class Meddling(FakeContext):
    """Calls ``meddle`` with the tokens done whenever there is progress."""

    def __init__(self, root: Path, meddle: Callable[[float], None]) -> None:
        super().__init__(root)
        self._meddle = meddle

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[FakeProgress]:
        with super().progress(description, total=total, unit=unit) as progress:
            advance = progress.advance

            def meddling(amount: float = 1) -> None:
                advance(amount)
                self._meddle(progress.done)

            progress.advance = meddling  # type: ignore[method-assign]
            yield progress


def test_a_killed_worker_fails_the_stage_by_name_and_the_same_bytes_come_out_in_the_end(
    artifacts: Path, alone: tuple[dict[str, bytes], Any], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(done: float) -> None:
        if done > 800 and not killed:
            victim = multiprocessing.active_children()[0]
            killed.append(victim.pid or 0)
            victim.kill()

    store = tmp_path / "scratch" / "store"
    with pytest.raises(StageError) as failure:
        run(artifacts, Meddling(tmp_path, kill), TWO)
    said = re.search(
        r"worker \d of 2 \(process (\d+)\) was killed \(signal 9\).* at work on shard \d+.* its log: (\S+)$",
        str(failure.value),
    )
    assert said, str(failure.value)
    assert int(said[1]) == killed[0]
    assert Path(said[2]).is_file()
    assert multiprocessing.active_children() == []
    kept = {p.parent.name: p.stat().st_ino for p in store.glob("shard-?????/COMMIT.json")}
    assert kept
    context = FakeContext(tmp_path)
    metrics = run(artifacts, context, ONE)
    assert tree(context.output) == alone[0]
    assert kept.items() <= {p.parent.name: p.stat().st_ino for p in store.glob("shard-?????/COMMIT.json")}.items()
    assert (metrics["shards"], metrics["workers"], metrics["threads"]) == (alone[1]["shards"], 1, 1)
    assert context.progresses[0][1].done == context.progresses[0][0] == metrics["tokens"]


def test_a_worker_that_cannot_begin_is_named_with_its_reason(artifacts: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    for path in (artifacts / "target").iterdir():
        data = path.read_bytes()
        (tmp_path / "target" / path.name).write_bytes(data[:500] if path.suffix == ".safetensors" else data)
    state_fingerprint(tmp_path / "target")
    (tmp_path / "tokens").symlink_to(artifacts / "tokens")
    with pytest.raises(StageError, match=r"worker \d of 2 .* failed \(\w+: .*before its first shard") as failure:
        run(tmp_path, FakeContext(tmp_path / "work"), TWO)
    log = Path(str(failure.value).rpartition("its log: ")[2])
    assert "Traceback" in log.read_text()


def test_one_shard_needs_no_second_process(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specflow.features.workers._start", lambda *_: pytest.fail("a process was started"))
    metrics = run(artifacts, FakeContext(tmp_path), TWO.model_copy(update={"shard_tokens": 10**6}))
    assert metrics["shards"] == 1


def test_what_a_worker_finds_wrong_is_raised_as_here() -> None:
    worker = _Worker("worker 1 of 2", None, None, Path("log"))  # type: ignore[arg-type]
    with pytest.raises(ProbeFailure, match="rows are shifted"):
        _answer(worker, ("failed", "ProbeFailure", "rows are shifted"), iter(()), lambda _: None, lambda _: None)


def test_no_documents_are_captured_as_none(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "target").symlink_to(artifacts / "target")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / TOKENS_FILE).touch()
    monkeypatch.setattr(Capturer, "run", lambda *_: pytest.fail("there is nothing to compute"))
    context = FakeContext(tmp_path / "work")
    metrics = run(tmp_path, context, TWO)
    assert (metrics["documents"], metrics["shards"], metrics["tokens"], metrics["probe_documents"]) == (0, 0, 0, 0)
    assert len(FeatureReader(context.output)) == 0


def test_threads_are_shared_out_and_kept_for_a_resume(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.stages.machine import resolved_threads

    monkeypatch.setattr("specflow.data.processes.usable_cores", lambda: 7)
    assert resolved_threads(tmp_path, None, workers=3) == 2
    assert resolved_threads(tmp_path, None, workers=1) == 2
    assert resolved_threads(tmp_path, 5, workers=3) == 5


def test_device(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [choose_device(asked) for asked in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [choose_device(asked) for asked in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(StageError, match=r"device 'cuda' is asked for, but torch .* finds none"):
        run(artifacts, FakeContext(tmp_path), PARAMS.model_copy(update={"device": "cuda"}))
    with pytest.raises(TargetError, match="packed"):
        Target.load(artifacts / "target", precision="packed", threads=1, device="meta")
    tensor = torch.ones(2)
    assert to_host(tensor)[0] is tensor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_of_a_cuda_device_are_those_of_the_cpu(artifacts: Path, tmp_path: Path) -> None:
    readers = []
    for device in ("cpu", "cuda"):
        context = FakeContext(tmp_path / device)
        metrics = run(artifacts, context, ONE.model_copy(update={"device": device}))
        assert (metrics["device"], metrics["precision"]) == (device, "fp32")
        readers.append(FeatureReader(context.output))
    for i in range(len(readers[0])):
        one, two = (reader.document(i) for reader in readers)
        assert torch.allclose(one.features_TKH.float(), two.features_TKH.float(), rtol=2**-7, atol=1e-3)
        assert torch.allclose(one.last_hidden_TH.float(), two.last_hidden_TH.float(), rtol=2**-7, atol=1e-3)
