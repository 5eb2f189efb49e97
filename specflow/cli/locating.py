"""Which artifact a command is about: by kind with a configuration, by path, or by the start of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specflow.cli.work import bad_input, open_store, open_work
from specflow.workflow.record import RECORD_NAME, ArtifactRecord
from specflow.workflow.store import ArtifactNotFound, ArtifactStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    path: Path
    record: ArtifactRecord | None = None
    """None for what is in no artifact."""
    store: ArtifactStore | None = None

    def input_path(self, kind: str) -> Path | None:
        """Directory of the input of a kind that it was made from, where it is in the store."""
        keys = self.record.inputs.get(kind, ()) if self.record else ()
        found = self.store.find(kind, keys[0]) if self.store and keys else None
        return found.path if found else None


def locate(
    name: str,
    kinds: Sequence[str],
    *,
    config: str | None,
    flow: str,
    settings: Sequence[str] | None,
    store: Path | None,
    what: str,
) -> Located:
    """``what`` names, in errors, that which only artifacts of these kinds have. Raises ``InputErrors``."""
    if name in kinds and config is not None:
        return _of_configuration(name, config, flow=flow, settings=settings or (), store=store)
    path = Path(name)
    if path.exists():
        folder = path if path.is_dir() else path.parent
        if not (folder / RECORD_NAME).exists():
            return Located(path=path)
        record = ArtifactRecord.model_validate_json((folder / RECORD_NAME).read_bytes())
        return Located(path=path, record=record, store=ArtifactStore(folder.absolute().parents[1]))
    if name in kinds:
        raise bad_input(name, "which?", "--config FILE, a path, or the start of a key")
    known = open_store(config, store)
    try:
        found = known.resolve(name)
    except ArtifactNotFound as error:
        choices = " or ".join(f"`{kind}`" for kind in kinds)
        raise bad_input(name, str(error), f"{choices} with --config, a path, or a key") from error
    record_found = known.record(found.kind, found.key)
    if record_found is None or found.kind not in kinds:
        raise bad_input(name, f"this artifact has no {what}", " or ".join(kinds), found=found.kind)
    return Located(path=found.path, record=record_found, store=known)


def _of_configuration(kind: str, config: str, *, flow: str, settings: Sequence[str], store: Path | None) -> Located:
    work = open_work(flow, config, settings=settings, store=store)
    nodes = [node for node in work.plan(verify=False).nodes if node.kind == kind]
    if not nodes or nodes[0].record is None:
        made = nodes[0].node.stage if nodes else kind
        raise bad_input(kind, "has not been made yet", f"run `specflow {made} --config {config} --upstream` first")
    return Located(path=work.store.path(kind, nodes[0].key), record=nodes[0].record, store=work.store)
