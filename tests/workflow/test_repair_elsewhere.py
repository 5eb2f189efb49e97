"""Repair of features whose shards are kept at a URL: every kind of damage at a local one, several on a server of S3."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from specflow.config.capture import StoreOptions
from specflow.features.inspection import inspect_store
from specflow.features.location import ELSEWHERE, Bucket, StorageError, kept_elsewhere
from specflow.features.making import ShardMaker
from specflow.features.reader import FeatureReader
from specflow.stages import capture
from specflow.stages.contract import Inputs
from specflow.targets.target import Target
from specflow.workflow.commit import Attempt
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow
from tests.object_storage import s3_server
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.capture_process import PARAMS
from tests.stages.pipeline_helpers import FakeContext, tiny_target, tree
from tests.workflow.test_repair import KEYS, commit

__all__ = ["s3_server"]

KEY = KEYS["features"]
CHUNK = "shard-00001/features/c/0/0/0"


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


Pristine = tuple[Path, dict[str, bytes]]
"""A store with a target, documents and their features, and the bytes of the bucket that holds the shards."""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory, s3_server: str) -> Pristine:
    httpx.put(f"{s3_server}/repair").raise_for_status()
    options = StoreOptions(endpoint=s3_server, region="us-east-1")
    return made(tmp_path_factory.mktemp("remote"), "s3://repair/features", options)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    root = tmp_path_factory.mktemp("local")
    return made(root, f"file://{root}/bucket", StoreOptions())


def made(root: Path, url: str, options: StoreOptions) -> Pristine:
    torch.set_num_threads(1)
    store, sources_in = ArtifactStore(root / "store"), root / "made"
    target = Target.load(tiny_target(sources_in).path, precision="fp32", threads=1)
    tokens_artifact(sources_in / "tokens", greedy_documents(target))
    sources = tuple(
        commit(store, kind, lambda a, k=kind: shutil.copytree(sources_in / k, a.output, dirs_exist_ok=True) and None)
        for kind in ("target", "tokens")
    )
    params = PARAMS.model_copy(update={"store_url": url, "store_options": options})

    def captured(attempt: Attempt) -> Any:
        context = FakeContext(root / "run")
        context.key, context.output, context.scratch = KEY, attempt.output, attempt.scratch
        return capture.run(Inputs(sources), params, context)

    features = commit(store, "features", captured, inputs=("target", "tokens"), params=params)
    assert features.metrics["shards"] > 2
    place = kept_elsewhere(features.path)
    assert place is not None
    return store.root, {name: place.read(name) for name in place.sizes()}


@pytest.fixture
def store(local: Pristine, tmp_path: Path) -> ArtifactStore:
    return copied(local, tmp_path)


def copied(pristine: Pristine, to: Path) -> ArtifactStore:
    """The store anew, and the bucket, which all copies share, as it was."""
    root, whole = pristine
    shutil.copytree(root, to / "store")
    found = ArtifactStore(to / "store")
    place = bucket(found)
    place.delete(sorted(set(place.sizes()) - set(whole)))
    for name, data in whole.items():
        if place.sizes().get(name) is None or place.read(name) != data:
            place.put(name, data)
    return found


def bucket(store: ArtifactStore) -> Bucket:
    place = kept_elsewhere(store.path("features", KEY))
    assert place is not None
    return place


def content(store: ArtifactStore, place: Bucket) -> tuple[dict[str, bytes], dict[str, bytes]]:
    return tree(store.path("features", KEY)), {name: place.read(name) for name in place.sizes()}


def edit(name: str, change: Callable[[bytes], bytes | None]) -> Callable[[ArtifactStore], None]:
    """Change a file in the bucket; None removes it."""

    def spoil(store: ArtifactStore) -> None:
        place = bucket(store)
        found = change(place.read(name) if name in place.sizes() else b"")
        if found is None:
            place.delete([name])
        else:
            place.put(name, found)

    return spoil


def here(name: str, change: Callable[[Path], object]) -> Callable[[ArtifactStore], None]:
    return lambda store: change(store.path("features", KEY) / name) and None


def several(*spoils: Callable[[ArtifactStore], None]) -> Callable[[ArtifactStore], None]:
    return lambda store: [spoil(store) for spoil in spoils] and None  # type: ignore[func-returns-value]


def whole_shard(store: ArtifactStore) -> None:
    place = bucket(store)
    place.delete([name for name in place.sizes() if name.startswith("shard-00000/")])


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


SHARD_1, ROOT = "store/shard-00001/", "store/zarr.json"
DAMAGE: dict[str, tuple[Callable[[ArtifactStore], None], dict[str, str], list[str]]] = {
    "flipped byte": (edit(CHUNK, flip), {SHARD_1: "has another checksum"}, ["shard-00001"]),
    "missing object": (edit(CHUNK, lambda d: None), {SHARD_1: "is missing"}, ["shard-00001"]),
    "foreign object": (edit(f"{CHUNK}x", lambda d: b"x"), {SHARD_1: "does not belong"}, ["shard-00001"]),
    "another marker": (edit("shard-00001/COMMIT.json", lambda d: d + b" "), {SHARD_1: "not the one"}, ["shard-00001"]),
    "missing shard": (whole_shard, {"store/shard-00000/": "the shard is missing"}, ["shard-00000"]),
    "missing root": (edit("zarr.json", lambda d: None), {ROOT: "never finished"}, []),
    "half a root": (edit("zarr.json", lambda d: d[:9]), {ROOT: "is damaged"}, []),
    "missing contract there": (edit("contract.json", lambda d: None), {ROOT: "contract.json is missing"}, []),
    "foreign beside": (edit("other", lambda d: b"x"), {ROOT: "other does not belong"}, []),
    "root and two shards": (
        several(edit("zarr.json", lambda d: None), edit(CHUNK, flip), whole_shard),
        {ROOT: "never finished", "store/shard-00000/": "is missing", SHARD_1: "checksum"},
        ["shard-00000", "shard-00001"],
    ),
    "lost contract here": (here("contract.json", lambda p: p.unlink()), {"contract.json": "is missing"}, []),
    "contract and a shard": (
        several(here("contract.json", lambda p: p.write_text("{}")), edit(CHUNK, flip)),
        {"contract.json": "bytes, ", SHARD_1: "checksum"}, ["shard-00001"],
    ),
    "lost place": (here(ELSEWHERE, lambda p: p.unlink()), {ELSEWHERE: "is missing"}, []),
    "half a place": (here(ELSEWHERE, lambda p: p.write_text("{")), {ELSEWHERE: "bytes, "}, []),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_repaired_and_whole_shards_are_left_alone(
    store: ArtifactStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired(store, kind, monkeypatch)


@pytest.mark.parametrize("kind", ["root and two shards", "another marker", "contract and a shard"])
def test_on_a_server(
    remote: Pristine, tmp_path: Path, s3_server: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired(copied(remote, tmp_path), kind, monkeypatch)


def repaired(store: ArtifactStore, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, wrong, shards = DAMAGE[kind]
    place, path = bucket(store), store.path("features", KEY)
    before = content(store, place)
    spoil(store)
    assert content(store, place) != before
    computed: list[int] = []
    honest = ShardMaker._compute
    monkeypatch.setattr(ShardMaker, "_compute", lambda self, task: computed.append(task.number) or honest(self, task))
    result = specflow("features", "repair", KEY[:9], "--store", store.root, "--json")
    assert result.exit_code == 0, result.output
    found = document(result)
    assert found["repaired"] is True
    assert set(found["damage"]) == set(wrong)
    for name, problem in wrong.items():
        assert problem in found["damage"][name]
        assert f"damaged: {name} " in result.stderr
    assert found["shards"] == shards
    assert computed == [int(shard.removeprefix("shard-")) for shard in shards]
    assert content(store, place) == before
    assert not inspect_store(path).damage
    assert not list(store.work.glob("*/repair"))


def test_what_is_whole_is_left_alone(store: ArtifactStore) -> None:
    before = content(store, bucket(store))
    result = specflow("features", "repair", KEY[:9], "--store", store.root)
    assert (result.exit_code, result.stdout) == (0, f"features/{KEY[:12]}: every byte is as recorded\n")
    assert content(store, bucket(store)) == before
    assert len(FeatureReader(store.path("features", KEY))) == 11


def refused(store: ArtifactStore, reason: str) -> str:
    result = specflow("features", "repair", KEY[:9], "--store", store.root, "--json")
    assert result.exit_code == 1, result.output
    error = str(document(result)["error"])
    assert reason in error
    return error


def test_without_its_inputs_nothing_is_removed(store: ArtifactStore) -> None:
    edit(CHUNK, flip)(store)
    before = bucket(store).sizes()
    shutil.rmtree(store.path("tokens", KEYS["tokens"]))
    error = refused(store, "input tokens/222222222222 is not in the store")
    assert f"To make it anew, remove {store.path('features', KEY)} and run the flow" in error
    assert bucket(store).sizes() == before


def test_other_bytes_than_the_recorded_are_refused(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of other arithmetic; what was made is not taken for the recorded shard."""
    edit(CHUNK, flip)(store)
    honest = ShardMaker._compute

    def other(self: ShardMaker, task: Any) -> Any:
        found = honest(self, task)
        next(iter(found.values())).features_TKH[0, 0, 0] *= 1.01
        return found

    monkeypatch.setattr(ShardMaker, "_compute", other)
    refused(store, "still other than recorded: store/shard-00001/. Captured with precision fp32, threads 1")
    assert "COMMIT.json is not the one" in inspect_store(store.path("features", KEY)).damage[0]
    monkeypatch.setattr(ShardMaker, "_compute", honest)
    assert specflow("features", "repair", KEY[:9], "--store", store.root).exit_code == 0


def test_storage_that_cannot_be_reached_is_named(
    remote: Pristine, tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copied(remote, tmp_path)

    def failing(*_: object) -> None:
        raise StorageError("s3://repair/features: no such bucket; look at the URL")

    monkeypatch.setattr(Bucket, "sizes", failing)
    assert "run the flow" not in refused(store, "no such bucket; look at the URL")
    verified = specflow("features", "verify", KEY[:9], "--store", store.root, "--documents", "0")
    assert verified.exit_code == 1
    said = " ".join(verified.stderr.split())
    assert "s3://repair/features: no such bucket; look at the URL. Nothing is known to be damaged" in said
