"""Stored features against their commit markers, their target, and a new computation of some documents."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.stages.contract import Artifact, StageError
from specflow.stages.running import readable

if TYPE_CHECKING:
    from specflow.features.comparison import Comparison
    from specflow.features.inspection import Inspection
    from specflow.features.probes import Probe
    from specflow.features.reader import FeatureReader
    from specflow.targets.target import Target


SHOWN = 5


@dataclass(slots=True, kw_only=True)
class Checked:
    shards: int = 0
    documents: int = 0
    damaged_shards: list[int] = field(default_factory=list)
    """Numbers; what is wrong with them is in ``damage``."""
    damage: list[str] = field(default_factory=list)
    """Everything wrong; empty: the features are whole and those of their target."""
    notes: list[str] = field(default_factory=list)
    """What was not looked at, and why."""
    probes: list[Probe] = field(default_factory=list)
    comparison: Comparison | None = None
    """With the target, where one was given."""

    def as_json(self) -> dict[str, Any]:
        from specflow.features.comparison import rows_of

        differences = self.comparison.refused if self.comparison else ()
        return {
            "shards": self.shards,
            "documents": self.documents,
            "damaged_shards": self.damaged_shards,
            "damage": self.damage,
            "notes": self.notes,
            "differences": [{"field": f, "features": a, "target": b} for f, a, b in rows_of(differences)],
            "probes": [asdict(probe) for probe in self.probes],
        }


def check_features(artifact: Artifact, *, target: Artifact | None, count: int, tokens: Path | None = None) -> Checked:
    """Every checksum; with a ``target``, the contract against it and ``count`` documents computed again.

    With ``tokens``, the directory of the tokens artifact, the ids of every document are compared with it.
    Raises ``StageError`` where object storage cannot be reached.
    """
    with readable([artifact]):
        return _checked(artifact, target, count, tokens)


def _checked(artifact: Artifact, target: Artifact | None, count: int, tokens: Path | None) -> Checked:
    from specflow.features.inspection import inspect_store
    from specflow.features.reader import FeatureReader

    store = inspect_store(artifact.path)
    damaged = sorted(store.shards)
    found = Checked(shards=store.count, damaged_shards=damaged, damage=list(store.damage))
    if store.damage:
        found.notes.append("documents cannot be counted or computed again until the store is whole")
    else:
        reader = FeatureReader(artifact.path, checksums=False)
        found.documents = len(reader)
        expected = artifact.metrics.get("documents", len(reader))
        if expected != len(reader):
            found.damage.append(f"{artifact.path}: holds {len(reader)} documents, {expected} were captured")
        if tokens is None:
            found.notes.append("token ids were not compared: the tokens artifact is not in the store")
        else:
            found.damage += _other_tokens(reader, tokens)
    if target is not None:
        fits = _compare(artifact, target, store, found)
        if fits and not store.damage and len(reader):
            _probe(target, reader, count, found)
    return found


def _other_tokens(reader: FeatureReader, tokens: Path) -> list[str]:
    """Documents whose ids or supervised tokens are not those of their row in the tokens artifact."""
    from specflow.data.stored import StoredDocuments

    documents = StoredDocuments(tokens)
    wrong = []
    try:
        for position in range(len(reader)):
            stored = reader.document(position)
            rows = stored.token_ids_T.numel()
            row = documents[stored.index] if stored.index < len(documents) else None
            if row is None or (row.id, row.ids[:rows]) != (stored.id, stored.token_ids_T.tolist()):
                wrong.append(f"document {stored.id or stored.index}: other token ids than row {stored.index + 1}")
            elif row.supervised[:rows] != stored.supervised_T.tolist():
                wrong.append(
                    f"document {stored.id or stored.index}: other supervised tokens than row {stored.index + 1}"
                )
    finally:
        documents.close()
    shown = wrong[:SHOWN]
    if len(wrong) > SHOWN:
        shown.append(f"and {len(wrong) - SHOWN} more documents")
    return [f"{line} of {tokens}" for line in shown]


def _compare(artifact: Artifact, target: Artifact, store: Inspection, found: Checked) -> bool:
    """Whether target and features belong together; what does not is added to ``found``."""
    from specflow.features.comparison import Use, compare
    from specflow.stages.fitting import features_side, refusal, target_side

    if store.contract is None:
        return False
    try:
        model = target_side(target)
    except StageError as error:
        found.damage.append(str(error))
        return False
    found.comparison = compare(Use.CAPTURED_FROM, features_side(artifact), model)
    if found.comparison.refused:
        found.damage.append(refusal(found.comparison, remedy="Capture the features again from this target"))
    return not found.comparison.refused


def _probe(target: Artifact, reader: FeatureReader, count: int, found: Checked) -> None:
    from specflow.features.probes import ProbeFailure, judge_alignment, probe_stored, spread

    model = _load(target.path, reader.contract.precision, found)
    for place in spread(len(reader), count):
        document = reader.document(place)
        try:
            found.probes.append(probe_stored(model, reader.contract, document))
        except ProbeFailure as failure:
            found.damage.append(str(failure))
    try:
        judge_alignment(found.probes)
    except ProbeFailure as failure:
        found.damage.append(str(failure))


def _load(path: Path, precision: str, found: Checked) -> Target:
    """The target as it computed; in fp32 where this machine cannot."""
    from specflow.targets.base import TargetError
    from specflow.targets.target import Target

    try:
        return Target.load(path, precision=precision)
    except TargetError as error:
        if precision == "fp32":
            raise StageError(str(error)) from error
        found.notes.append(f"computed again in fp32: {error}")
        return Target.load(path, precision="fp32")
