"""Capture into object storage, and what reads features from there: training and the checks of verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.config.capture import CaptureParams, StoreOptions
from specflow.config.drafter import TrainParams
from specflow.drafters.dflash.params import Params
from specflow.features.location import Bucket, kept_elsewhere
from specflow.features.reader import FeatureReader
from specflow.serving.verification.alignment import check_alignment
from specflow.stages import capture, train
from specflow.stages.contract import StageError
from specflow.targets.target import Target
from tests.object_storage import bucket, s3_server
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.capture_process import PARAMS
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target, tree

__all__ = ["bucket", "s3_server"]

TRAIN = Params(
    method="dflash",
    num_layers=1,
    block_size=4,
    train=TrainParams(steps=4, documents_per_step=2, evaluate_every=4, softmax_tokens=64, soft_targets=0.5, threads=1),
)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("artifacts")
    target = Target.load(tiny_target(root).path, precision="fp32", threads=1)
    tokens_artifact(root / "tokens", greedy_documents(target, shared=6, other=10))
    return root


def captured(artifacts: Path, root: Path, params: CaptureParams) -> tuple[Path, dict[str, Any], FakeContext]:
    context = FakeContext(root)
    given = inputs(tiny_target(artifacts), artifact("tokens", artifacts / "tokens"))
    return context.output, dict(capture.run(given, params, context)), context


def remote(url: str, endpoint: str, **changes: Any) -> CaptureParams:
    options = StoreOptions(endpoint=endpoint, region="us-east-1")
    return PARAMS.model_copy(update={"store_url": f"{url}/features", "store_options": options, **changes})


def trained(artifacts: Path, features: Path, root: Path) -> bytes:
    context = FakeContext(root)
    train.run(inputs(tiny_target(artifacts), artifact("features", features)), TRAIN, context)
    return (context.output / "drafter" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("form", [{}, {"storage": "fp8", "rows": "usable"}], ids=["bfloat16", "fp8, usable"])
def test_capture_train_verify(
    artifacts: Path, tmp_path: Path, bucket: str, s3_server: str, form: dict[str, Any]
) -> None:
    here, numbers, _ = captured(artifacts, tmp_path / "here", PARAMS.model_copy(update=form))
    there, remote_numbers, context = captured(artifacts, tmp_path / "there", remote(bucket, s3_server, **form))
    assert remote_numbers["bytes"] == numbers["bytes"]
    place = kept_elsewhere(there)
    assert place is not None
    assert str(place) == f"{bucket}/features/{context.key}"
    assert {n: place.read(n) for n in place.sizes() if n != "contract.json"} == tree(here / "store")
    assert not (there / "store").exists()
    assert trained(artifacts, there, tmp_path / "b") == trained(artifacts, here, tmp_path / "a")
    reader = FeatureReader(there)
    check = check_alignment(
        [reader.document(i) for i in reader.indices("heldout")],
        target=Target.load(tiny_target(artifacts).path, precision="fp32", threads=1),
        layer_ids=reader.contract.layer_ids,
        dtype=reader.contract.dtype,
    )
    assert check.passed, str(check)
    assert check.numbers["equal_next_token"] > 0.99


def test_a_killed_capture_goes_on_where_it_was(
    artifacts: Path, tmp_path: Path, bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = remote(bucket, s3_server)
    output, _, _ = captured(artifacts, tmp_path / "whole", params)
    place = kept_elsewhere(output)
    assert place is not None
    whole = {name: place.read(name) for name in place.sizes()}
    place.delete(list(whole))
    put, left = Bucket.put, [20]

    class Killed(BaseException): ...

    def dying(self: Bucket, name: str, data: bytes | Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        put(self, name, data)

    monkeypatch.setattr(Bucket, "put", dying)
    with pytest.raises(Killed):
        captured(artifacts, tmp_path / "killed", params)
    monkeypatch.setattr(Bucket, "put", put)
    assert 0 < len(place.sizes()) < len(whole)
    with pytest.raises(StageError, match=f"expected capture.store_url as it was when this capture began .{place}"):
        captured(artifacts, tmp_path / "killed", PARAMS)
    _, _, context = captured(artifacts, tmp_path / "killed", params)
    assert any("already captured" in message for message in context.messages)
    assert {name: place.read(name) for name in place.sizes()} == whole


def test_a_bucket_that_is_not_there(artifacts: Path, tmp_path: Path, bucket: str, s3_server: str) -> None:
    with pytest.raises(StageError, match=r"capture: s3://no-such-bucket/features/5{64}.*look at the URL"):
        captured(artifacts, tmp_path, remote("s3://no-such-bucket", s3_server))
