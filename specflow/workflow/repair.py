"""Repairing a features artifact: what is damaged is captured again, and must come out as it was recorded."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout

from specflow.config.capture import CaptureParams
from specflow.features.contract import CONTRACT_FILE
from specflow.features.location import ELSEWHERE, Bucket, StorageError, keep_elsewhere, kept_elsewhere
from specflow.features.shard import remove_shard
from specflow.stages.contract import Artifact, Inputs, Progress, StageError
from specflow.stages.running import run_stage
from specflow.workflow.commit import flush
from specflow.workflow.keys import hash_file
from specflow.workflow.record import ArtifactRecord, describe_environment
from specflow.workflow.registry import STAGES
from specflow.workflow.store import FOREIGN, ArtifactStore

KIND, CAPTURE = "features", "capture"
SHARDS = "store/"


class NotRepairable(Exception):
    """The message says why, and how the artifact can be made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was wrong and is right again."""

    damage: Mapping[str, str]
    """By file, relative to the artifact."""
    shards: tuple[str, ...] = ()
    """Names of the shards that were captured again."""


def shard_of(name: str) -> str | None:
    """``shard-00003`` for a file of that shard; none for other files of the artifact."""
    parts = name.split("/")
    return parts[1] if name.startswith(SHARDS) and len(parts) > 2 else None


def repair_features(store: ArtifactStore, key: str, *, log: Callable[[str], None]) -> Repair:
    """Make a features artifact whole, byte for byte as recorded. Raises :class:`NotRepairable`.

    Damaged files are replaced one by one, each by a rename, so a repair that is killed has made nothing worse, and
    whoever reads whole shards meanwhile is not disturbed. Foreign files go to ``.damaged``. Shards in object storage,
    which has no rename, are removed and made again where they are, and what is foreign there is removed.
    """
    path = store.path(KIND, key)
    try:
        with store.lock(KIND, key, timeout=0):
            return _repair(store, key, log)
    except Timeout as error:
        raise NotRepairable("another process makes or repairs this artifact: wait until it has ended") from error
    except StorageError as error:
        raise NotRepairable(str(error)) from error
    except _NotAsRecorded as error:
        remake = f"remove {path} and run the flow" if (path / ELSEWHERE).exists() else _RUN_THE_FLOW
        raise NotRepairable(f"{error}. To make it anew, {remake}") from error


class _NotAsRecorded(Exception):
    """What cannot be brought back."""


_RUN_THE_FLOW = "run the flow: it puts the damaged artifact aside and captures all of it again"


def _repair(store: ArtifactStore, key: str, log: Callable[[str], None]) -> Repair:
    record, path = store.record(KIND, key), store.path(KIND, key)
    if record is None or record.key != key:
        raise _NotAsRecorded("artifact.json is missing or unreadable, and with it what every file must be")
    if record.stage != CAPTURE:
        slices = ", ".join(name[:12] for name in record.inputs.get(KIND, []))
        raise NotRepairable(
            f"{KIND}/{key[:12]} joins the features of slices ({slices}), with which it shares its files: repair those, "
            f"then {_RUN_THE_FLOW.partition(':')[0]}, which joins them again"
        )
    damage = store.damage(KIND, key, record)
    wanted = [name for name, problem in damage.items() if problem != FOREIGN]
    bucket = _bucket(record, path, lost=ELSEWHERE in damage)
    # Where the artifact does not know its shards any more, capture itself finds those that are damaged.
    there = _damage_elsewhere(path, contract=CONTRACT_FILE not in damage) if bucket and ELSEWHERE not in damage else {}
    for name, problem in (*damage.items(), *there.items()):
        log(f"damaged: {name} {problem}")
    shards = sorted({shard for name in (*wanted, *there) if (shard := shard_of(name))})
    if wanted or there:
        inputs = _inputs(store, record)
        if bucket:
            for shard in shards:
                remove_shard(bucket.child(shard))
        with _made_again(store, record, inputs, shards, bucket, log) as made:
            _require_recorded(made, record, wanted, nothing_changed=bucket is None)
            for name in wanted:
                _replace(made / name, path / name)
    _put_aside(store, key, [name for name, problem in damage.items() if problem == FOREIGN])
    left = [*store.damage(KIND, key, record), *(_damage_elsewhere(path, contract=True) if bucket else {})]
    if left:
        raise _NotAsRecorded(f"still other than recorded: {', '.join(left)}. {_differences(record)}")
    return Repair(damage={**damage, **there}, shards=tuple(shards))


def _bucket(record: ArtifactRecord, path: Path, *, lost: bool) -> Bucket | None:
    """Where the shards are, if not in the artifact; by the recorded parameters where the artifact has ``lost`` it."""
    if ELSEWHERE not in record.files:
        return None
    if not lost:
        return kept_elsewhere(path)
    params = CaptureParams.model_validate(record.parameters)
    return Bucket(f"{params.store_url}/{record.key}", params.store_options.model_dump())


def _damage_elsewhere(path: Path, *, contract: bool) -> dict[str, str]:
    """What is wrong in object storage, by the name that it would have in the artifact.

    Without ``contract`` the artifact's own copy of it is damaged: nothing there is compared with it.
    """
    from specflow.features.inspection import ROOT, inspect_store
    from specflow.features.reader import shard_name

    found = inspect_store(path)
    whole = {f"{SHARDS}{ROOT}": "; ".join(found.problems)} if found.problems and contract else {}
    return {**whole, **{f"{SHARDS}{shard_name(n)}/": problem for n, problem in sorted(found.shards.items())}}


def _inputs(store: ArtifactStore, record: ArtifactRecord) -> Inputs:
    """The artifacts it was made from, undamaged and with the content of then."""
    found: list[Artifact] = []
    for kind, key in ((kind, key) for kind, keys in record.inputs.items() for key in keys):
        name, now = f"{kind}/{key[:12]}", store.record(kind, key)
        if now is None:
            raise _NotAsRecorded(f"its input {name} is not in the store {store.root}")
        if problems := store.verify_key(kind, key):
            raise _NotAsRecorded(f"its input {name} is damaged itself ({'; '.join(problems[:3])})")
        if now.content_digest != record.input_digests.get(f"{kind}/{key}", now.content_digest):
            raise _NotAsRecorded(f"its input {name} was made again with other content")
        found.append(now.artifact(store.path(kind, key)))
    return Inputs(tuple(found))


@contextmanager
def _made_again(
    store: ArtifactStore,
    record: ArtifactRecord,
    inputs: Inputs,
    shards: list[str],
    bucket: Bucket | None,
    log: Callable[[str], None],
) -> Iterator[Path]:
    """The artifact's payload, made by its stage from the inputs and the shards that are whole, which are all but
    ``shards``."""
    # Inside the key's own place for unfinished work: garbage collection knows it and respects the lock.
    work = store.attempt_path(KIND, record.key) / "repair"
    shutil.rmtree(work, ignore_errors=True)
    context = _Context(key=record.key, output=work / "output", scratch=work / "scratch", log=log)
    context.output.mkdir(parents=True)
    try:
        context.scratch.mkdir()
        if bucket is not None:
            keep_elsewhere(context.scratch, bucket)
        for name in record.files:
            if (shard := shard_of(name)) and shard not in shards:
                link = context.scratch / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.hardlink_to(store.path(KIND, record.key) / name)
        run_stage(STAGES.load(record.stage), inputs, _params(record, bucket), context)
        yield context.output
    except StageError as error:
        raise _NotAsRecorded(str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with suppress(OSError):  # unfinished work of an earlier attempt may lie beside it
            work.parent.rmdir()


def _params(record: ArtifactRecord, bucket: Bucket | None) -> CaptureParams:
    """The recorded parameters, with what was left to the machine as it was decided then, and the shards' place."""
    decided = {name: record.metrics[name] for name in ("precision", "threads", "device") if name in record.metrics}
    place: dict[str, Any] = {"store_url": None}
    if bucket is not None:
        stated = bucket.to_json()
        place = {"store_url": stated["url"].removesuffix(f"/{record.key}"), "store_options": stated["options"]}
    return CaptureParams.model_validate({**record.parameters, **decided, **place})


def _require_recorded(made: Path, record: ArtifactRecord, names: list[str], *, nothing_changed: bool) -> None:
    """Raise unless every file came out with its recorded bytes."""
    other = [name for name in names if not _is(made / name, record.files[name].sha256)]
    if other:
        raise _NotAsRecorded(
            f"{len(other)} of {len(names)} damaged files come out with other bytes than were recorded, first "
            f"{other[0]}{': nothing was changed' if nothing_changed else ''}. {_differences(record)}"
        )


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and hash_file(path) == sha256


def _differences(record: ArtifactRecord) -> str:
    """What is not as it was when the artifact was made, of all that its bits depend on."""
    now, then = describe_environment(), record.environment
    packages = {name: (then.get("packages", {}).get(name), version) for name, version in now["packages"].items()}
    pairs = {"processor": (then.get("cpu"), now["cpu"]), "python": (then.get("python"), now["python"]), **packages}
    changed = [f"{name} {before} then, {after} now" for name, (before, after) in pairs.items() if before != after]
    if STAGES.code_version(record.stage) != record.code_version:
        changed.append("the code of the stage has changed")
    machine = {name: record.metrics.get(name, "unknown") for name in ("precision", "threads", "device")}
    settled = ", ".join(f"{name} {value}" for name, value in machine.items())
    return f"Captured with {settled}. Different since: {'; '.join(changed) or 'nothing that is recorded'}"


def _replace(source: Path, destination: Path) -> None:
    """Put a file in place of another in one step, on disk before it is seen."""
    flush(source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    source.replace(destination)
    flush(destination.parent)


def _put_aside(store: ArtifactStore, key: str, names: list[str]) -> None:
    root = store.damaged / f"{KIND}-{key}-{time.time_ns()}"
    for name in names:
        destination = root / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        (store.path(KIND, key) / name).rename(destination)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """A stage's context without a console."""

    key: str
    output: Path
    scratch: Path
    log: Callable[[str], None]
    item: str | None = None

    def progress(self, description: str, *, total: float, unit: str = "rows") -> Any:
        return nullcontext(_Silent())


class _Silent(Progress):
    def advance(self, amount: float = 1) -> None: ...

    def describe(self, text: str) -> None: ...

    def figures(self, values: Mapping[str, float]) -> None: ...
