"""The capture stage on the tiny target: values, resume after kill -9, damage, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams
from specflow.data.documents import TokenDocument, read_documents
from specflow.data.windows import windows
from specflow.features.capture import Captured, Capturer
from specflow.features.store import FeatureReader
from specflow.stages import capture
from specflow.stages.contract import StageError
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.capture_process import PARAMS, run
from tests.stages.pipeline_helpers import FakeContext, fingerprint_of, tiny_target, tree

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and documents that fill several shards."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("artifacts")
    target = Target.load(tiny_target(root).path, precision="fp32", threads=1)
    tokens_artifact(root / "tokens", greedy_documents(target, shared=8, other=16))
    return root


@pytest.fixture(scope="module")
def whole(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], FakeContext]:
    """An uninterrupted run."""
    context = FakeContext(tmp_path_factory.mktemp("whole"))
    return context.output, run(artifacts, context), context


def documents_of(artifacts: Path) -> list[TokenDocument]:
    return read_documents(artifacts / "tokens")


def payload(output: Path) -> dict[str, bytes]:
    return tree(output)


def test_everything_asked_for_is_stored(artifacts: Path, whole: tuple[Path, dict[str, Any], FakeContext]) -> None:
    output, metrics, context = whole
    documents, reader = documents_of(artifacts), FeatureReader(whole[0])
    assert len(reader) == len(documents) == metrics["documents"]
    assert metrics["tokens"] == sum(len(d.ids) for d in documents)
    assert metrics["shards"] == len(list((output / "store").glob("shard-*"))) > 3
    for i, document in enumerate(documents):
        found = reader.document(i)
        assert (found.id, found.split, found.kind) == (document.id, document.split, document.kind)
        assert found.token_ids_T.tolist() == document.ids
        assert found.supervised_T.tolist() == document.supervised
    assert reader.indices("heldout") == [i for i, d in enumerate(documents) if d.split == "heldout"]
    assert reader.contract.weights_sha256 == fingerprint_of(tiny_target(artifacts))["weights_sha256"]
    assert reader.contract.layer_ids == (0, 2)
    total, progress = context.progresses[0]
    assert progress.done == total == metrics["tokens"]


def test_metrics(artifacts: Path, whole: tuple[Path, dict[str, Any], FakeContext]) -> None:
    _, metrics, _ = whole
    assert metrics["bytes_per_token"] == 2 * 64 * 3 + 5
    assert 0 <= metrics["padding_share"] < 0.5
    assert metrics["forward_share"] < 0.85
    assert metrics["alignment_rows"] > 0
    assert metrics["alignment_share"] > 0.9
    assert metrics["probe_error"] < 0.01 < metrics["probe_neighbour_error"]
    assert metrics["quarantined"] == 0
    assert (metrics["precision"], metrics["probe_documents"]) == ("fp32", metrics["shards"])
    assert metrics["head_rows"] > 0
    assert metrics["head_share"] + metrics["head_near_ties"] / metrics["head_rows"] == 1.0
    assert metrics["stored_documents_probed"] == 2


def test_probes_cannot_be_switched_off(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = PARAMS.model_copy(update={"probe_rows": 0})
    metrics = run(artifacts, FakeContext(tmp_path / "sound"), none)
    assert (metrics["probe_documents"], metrics["stored_documents_probed"]) == (1, 2)
    plant(monkeypatch, lambda made: [Captured(c.features_TKH * 2, c.last_hidden_TH) for c in made])
    with pytest.raises(
        StageError, match=r"layer 0 captured in a batch differs .* values are scaled by 2\. No artifact was made"
    ):
        run(artifacts, FakeContext(tmp_path / "wrong"), none)


def test_what_is_written_is_probed_as_it_is_read(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that writes other bits than it was given, with good checksums."""
    from specflow.features import store

    honest = store._Arrays.put_rows

    def wrong(self: Any, name: str, rows: Any, row: Any, dtype: str) -> None:
        honest(self, name, [r.flip(-1).contiguous() for r in rows] if name == "features" else rows, row, dtype)

    monkeypatch.setattr(store._Arrays, "put_rows", wrong)
    with pytest.raises(StageError, match="read back from the store, document row-"):
        run(artifacts, FakeContext(tmp_path))


def test_the_contract_states_the_thinking_mode(artifacts: Path, tmp_path: Path) -> None:
    for modes, expected in (((None,), "template_default"), ((True,), "on"), ((False,), "off"), ((True, None), "mixed")):
        documents = [replace(d, thinking=modes[n % len(modes)]) for n, d in enumerate(documents_of(artifacts)[:4])]
        root = tmp_path / expected
        tokens_artifact(root / "tokens", documents)
        (root / "target").symlink_to(artifacts / "target")
        context = FakeContext(root / "work")
        run(root, context)
        assert FeatureReader(context.output).contract.thinking == expected


def test_values_are_those_of_the_target(artifacts: Path, whole: tuple[Path, dict[str, Any], FakeContext]) -> None:
    target = Target.load(tiny_target(artifacts).path, precision="fp32", threads=1)
    reader = FeatureReader(whole[0])
    for i in (0, 7, 8, 23):
        found = reader.document(i)
        ids = found.token_ids_T[None]
        alone = target.forward(ids, target.new_cache(1, ids.shape[1]), layer_ids=(0, 2))
        assert alone.features_BTKH is not None
        assert torch.allclose(found.features_TKH.float(), alone.features_BTKH[0], rtol=2**-7, atol=1e-4)
        assert torch.allclose(found.last_hidden_TH.float(), alone.last_hidden_BTH[0], rtol=2**-7, atol=1e-4)


def test_killed_and_resumed_gives_the_same_bytes(
    artifacts: Path, whole: tuple[Path, dict[str, Any], FakeContext], tmp_path: Path
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'kernels'}"}
    command = [sys.executable, "-m", "tests.stages.capture_process", str(artifacts), str(tmp_path)]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment)
    store = tmp_path / "scratch" / "store"
    deadline = time.monotonic() + 120
    while not (store / "shard-00001").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    kept = {p.name: p.stat().st_mtime_ns for p in store.glob("shard-?????/COMMIT.json")}
    context = FakeContext(tmp_path)
    metrics = run(artifacts, context)
    assert payload(context.output) == payload(whole[0])
    assert kept.items() <= {p.name: p.stat().st_mtime_ns for p in store.glob("shard-?????/COMMIT.json")}.items()
    assert any("already captured" in message for message in context.messages)
    assert metrics["alignment_rows"] == whole[1]["alignment_rows"]


def test_nothing_left_to_do_is_success(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FakeContext(tmp_path)
    run(artifacts, first)
    monkeypatch.setattr(Capturer, "run", lambda *_: pytest.fail("a finished shard was computed again"))
    again = FakeContext(tmp_path)
    metrics = run(artifacts, again)
    assert payload(again.output) == payload(first.output)
    assert metrics["tokens_per_second"] is None


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "unmark", "partial"])
def test_a_damaged_shard_is_captured_again(
    artifacts: Path, whole: tuple[Path, dict[str, Any], FakeContext], tmp_path: Path, damage: str
) -> None:
    run(artifacts, FakeContext(tmp_path))
    shard = tmp_path / "scratch/store/shard-00001"
    chunk = shard / "features/c/0/0/0"
    data = chunk.read_bytes()
    chunk.unlink()  # linked into the first output, which stays as it is
    if damage == "flip":
        chunk.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif damage == "truncate":
        chunk.write_bytes(data[:-3])
    elif damage == "unmark":
        chunk.write_bytes(data)
        (shard / "COMMIT.json").unlink()
    elif damage == "partial":
        chunk.write_bytes(data)
        shard.rename(shard.with_name("shard-00001.partial"))
    context = FakeContext(tmp_path)
    run(artifacts, context)
    assert payload(context.output) == payload(whole[0])
    if damage != "partial":
        assert any("shard 1 is damaged" in message for message in context.messages)


def test_shards_of_other_documents_are_not_reused(artifacts: Path, tmp_path: Path) -> None:
    run(artifacts, FakeContext(tmp_path / "work"))
    documents = documents_of(artifacts)
    changed = [replace(documents[0], ids=[*documents[0].ids[:-1], 5]), *documents[1:]]
    other = tmp_path / "other"
    other.mkdir()
    (other / "target").symlink_to(artifacts / "target")
    tokens_artifact(other / "tokens", changed)
    context = FakeContext(tmp_path / "work")
    run(other, context)
    assert FeatureReader(context.output).document(0).token_ids_T.tolist() == changed[0].ids
    assert any("another plan" in message for message in context.messages)


@pytest.mark.parametrize("layer_ids", [(0, 3), (2, 9)])
def test_unreachable_layers_name_both_sides(artifacts: Path, tmp_path: Path, layer_ids: tuple[int, ...]) -> None:
    params = PARAMS.model_copy(update={"layer_ids": layer_ids})
    with pytest.raises(StageError) as refused:
        run(artifacts, FakeContext(tmp_path), params)
    text = str(refused.value)
    assert f"asks for [{layer_ids[1]}], but the target has 4 layers (target/tttttttttttt (" in text
    assert "expected ids from 0 to 2" in text
    assert ("3 is the last layer" in text) == (layer_ids[1] == 3)


def test_a_small_disk_is_refused_before_anything_is_computed(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(capture.shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 1000, 1000))
    monkeypatch.setattr(Capturer, "run", lambda *_: pytest.fail("computed without room"))
    with pytest.raises(StageError, match=r"capture needs .* GB .* only 0\.00 GB are free"):
        run(artifacts, FakeContext(tmp_path))


def plant(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    honest = Capturer.run
    monkeypatch.setattr(Capturer, "run", lambda self, batch: change(honest(self, batch)))


def test_a_shift_by_one_row_fails_the_stage(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda made: [Captured(c.features_TKH, c.last_hidden_TH.roll(1, 0)) for c in made])
    with pytest.raises(StageError, match="last_hidden captured in a batch differs"):
        run(artifacts, FakeContext(tmp_path))


def test_features_of_the_next_layer_fail_the_stage(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Capturer.__init__
    monkeypatch.setattr(Capturer, "__init__", lambda self, target, layers, ids: honest(self, target, (1, 2), ids))
    with pytest.raises(StageError, match="declared as layer 0 match layer 1 better"):
        run(artifacts, FakeContext(tmp_path))


def test_documents_in_another_order_fail_the_stage(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(made: list[Captured]) -> list[Captured]:
        rows = [len(c.last_hidden_TH) for c in made]
        turned = made[1:] + made[:1]
        return [
            Captured(t.features_TKH[:n], t.last_hidden_TH[:n]) if len(t.last_hidden_TH) >= n else c
            for t, c, n in zip(turned, made, rows, strict=True)
        ]

    plant(monkeypatch, swap)
    with pytest.raises(StageError, match="capture: document"):
        run(artifacts, FakeContext(tmp_path), PARAMS.model_copy(update={"probe_rows": 50}))


def test_answers_of_another_model_fail_the_alignment(artifacts: Path, tmp_path: Path) -> None:
    (tmp_path / "target").symlink_to(artifacts / "target")
    changed = [
        replace(d, ids=[(t + 1) % 256 if s else t for t, s in zip(d.ids, d.supervised, strict=True)])
        for d in documents_of(artifacts)
    ]
    tokens_artifact(tmp_path / "tokens", changed)
    with pytest.raises(StageError, match=r"target's own next token in \d+ of \d+ rows"):
        run(tmp_path, FakeContext(tmp_path / "work"))


def test_windows_of_greedy_answers_are_judged_only_where_they_are_greedy(artifacts: Path, tmp_path: Path) -> None:
    """A later window lacks the context in which the target chose its tokens."""
    parts = [part for d in documents_of(artifacts) for part in windows(d, d.prompt_length + 5, overlap=4)]
    later = [n for n, part in enumerate(parts) if part.offset]
    assert len(later) == len(documents_of(artifacts)) == len(parts) / 2
    every = PARAMS.model_copy(update={"probe_rows": 50})
    for name, made in (("right", parts), ("wrong", [replace(part, greedy=True) for part in parts])):
        root = tmp_path / name
        root.mkdir()
        (root / "target").symlink_to(artifacts / "target")
        tokens_artifact(root / "tokens", made)
    context = FakeContext(tmp_path / "work")
    metrics = run(tmp_path / "right", context, every)
    assert metrics["alignment_rows"] == sum(sum(part.supervised[1:]) for part in parts if not part.offset)
    reader = FeatureReader(context.output)
    assert reader.indices(greedy=False) == later
    with pytest.raises(StageError, match=r"target's own next token in \d+ of \d+ rows"):
        run(tmp_path / "wrong", FakeContext(tmp_path / "again"), every)


def test_documents_that_are_not_finite_are_set_aside_and_counted(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = documents_of(artifacts)[9].ids

    def spoil(self: Capturer, batch: Any) -> list[Captured]:
        made = honest(self, batch)
        for i, c in zip(batch.documents, made, strict=True):
            if list(self._documents[i]) == list(victim):
                c.features_TKH[1, 0, 3] = float("nan")
        return made

    honest = Capturer.run
    monkeypatch.setattr(Capturer, "run", spoil)
    context = FakeContext(tmp_path)
    metrics = run(artifacts, context)
    reader = FeatureReader(context.output)
    assert (metrics["documents"], metrics["quarantined"], len(reader)) == (23, 1, 23)
    assert metrics["tokens"] == sum(reader.length(i) for i in range(23))
    assert metrics["bytes"] > metrics["tokens"] * metrics["bytes_per_token"]
    assert '"features_not_finite"' in (context.output / "quarantine.jsonl").read_text()
    assert [reader.document(i).index for i in range(23)] == [i for i in range(24) if i != 9]
    with pytest.raises(StageError, match=r"1 of 24 rows \(4\.2%\) cannot be used"):
        run(artifacts, FakeContext(tmp_path), PARAMS.model_copy(update={"max_skipped": 0.01}))


def test_check_and_estimate() -> None:
    def problems(*layer_ids: int, **more: Any) -> list[tuple[str, str]]:
        params = CaptureParams(layer_ids=layer_ids, **more)
        return [(p.where, p.found) for p in capture.check(params)]

    assert problems(1, 5, 9) == []
    assert problems(1, shard_tokens=100, batch_tokens=200) == [("batch_tokens", "200")]
    assert "6 bytes x hidden size" in capture.estimate(CaptureParams(layer_ids=(1, 2))).note
