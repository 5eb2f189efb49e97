"""A drafter from elsewhere becomes an artifact, as if a stage had made it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from specflow.stages.contract import Artifact
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.keys import canonical_json, hash_file
from specflow.workflow.registry import STAGES
from specflow.workflow.store import ArtifactStore

STAGE, KIND = "import", "drafter"
CODE = "specflow.serving.importing"


def import_drafter(
    store: ArtifactStore, target: Artifact, directory: Path, *, name: str, log: Callable[[str], None]
) -> Artifact:
    """The drafter's artifact; the one that is there already where nothing changed.

    Raises ``NotUnderstood`` and ``ValueError`` as ``serving.importing.read_foreign``; ``StageError`` where the target
    was changed after it was made.
    """
    from specflow.drafters.loading import save_drafter
    from specflow.serving.importing import read_foreign
    from specflow.stages.fitting import target_fingerprint

    found = read_foreign(directory, target.path, fingerprint=target_fingerprint(target))
    parameters = {"files": {path.name: hash_file(path) for path in found.files}, "name": name}
    version, inputs = STAGES.versions.version(CODE), {"target": [target.key]}
    key = hashlib.sha256(canonical_json([KIND, version, parameters, inputs]).encode()).hexdigest()
    recipe = Recipe(
        kind=KIND,
        key=key,
        stage=STAGE,
        item=name,
        code_version=version,
        parameters={**parameters, "directory": directory.resolve().name},
        key_parameters=parameters,
        inputs=inputs,
    )
    with store.lock(KIND, key):
        made = store.find(KIND, key)
        if made is not None:
            log("it was imported before")
            return made
        attempt = Attempt(store, recipe)
        record = store.record(target.kind, target.key)
        attempt.prepare({f"{target.kind}/{target.key}": record.content_digest} if record else None)
        save_drafter(attempt.output / "drafter", found.network, found.manifest)
        for what in found.unknown:
            log(f"not known: {what}")
        count = sum(parameter.numel() for parameter in found.network.parameters())
        return attempt.commit({"imported": True, "parameters": count, "not_known": list(found.unknown)})
