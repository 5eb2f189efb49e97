"""Running a stage. What stored features raise, wherever in the stage it comes up, is an error that says what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specflow.features.location import StorageError, kept_elsewhere
from specflow.features.shard import DamagedShard
from specflow.stages.contract import Artifact, Context, Inputs, Metrics, StageError, StageModule

KIND = "features"


def run_stage(module: StageModule, inputs: Inputs, params: Any, context: Context) -> Metrics:
    """The stage's ``run``, with errors of the features that it reads as ``StageError``."""
    with readable(inputs.all(KIND)):
        return module.run(inputs, params, context)


@contextmanager
def readable(artifacts: Sequence[Artifact]) -> Iterator[None]:
    """Turn damage of features artifacts, and storage that fails, into ``StageError`` naming artifact, shard and file.

    Other errors pass, also those of files elsewhere.
    """
    try:
        yield
    except StorageError as error:
        raise StageError(f"{_named(_owner(artifacts, error), error)}. Nothing is known to be damaged") from error
    except DamagedShard as error:
        raise StageError(_damaged(_owner(artifacts, error), error)) from error
    except OSError as error:
        owner = _at(artifacts, error)
        if owner is None:
            raise
        raise StageError(_damaged(owner, error)) from error


def _at(artifacts: Sequence[Artifact], error: Exception) -> Artifact | None:
    """The artifact that the error is about, by the path or the URL in its message."""
    text = str(error)
    for artifact in artifacts:
        try:
            bucket = kept_elsewhere(artifact.path)
        except StorageError:
            bucket = None
        if str(artifact.path) in text or (bucket is not None and str(bucket) in text):
            return artifact
    return None


def _owner(artifacts: Sequence[Artifact], error: Exception) -> Artifact | None:
    return _at(artifacts, error) or (artifacts[0] if len(artifacts) == 1 else None)


def _named(artifact: Artifact | None, error: Exception) -> str:
    if artifact is None:
        return f"stored features cannot be read: {error}"
    return f"{artifact.kind}/{artifact.key[:12]} ({artifact.path}) cannot be read: {error}"


def _damaged(artifact: Artifact | None, error: Exception) -> str:
    if artifact is None:
        return f"{_named(artifact, error)}. `specflow features repair` makes damaged shards again"
    where = f"{artifact.kind}/{artifact.key[:12]} --store {shlex.quote(str(artifact.path.parents[1]))}"
    return (
        f"{_named(artifact, error)}. Everything that is damaged: `specflow features verify {where} --documents 0`. "
        f"Make it again: `specflow features repair {where}`, then run this stage once more"
    )
