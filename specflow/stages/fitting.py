"""Artifacts that do not belong together are refused, with both sides named. See ``specflow.features.comparison``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from specflow.stages.contract import Artifact, Context, Inputs, StageError

if TYPE_CHECKING:
    from specflow.features.comparison import Comparison, Side, Use

Read = TypeVar("Read")
FINGERPRINT_FILE = "fingerprint.json"
EXPORTED_CONTRACT = "draft/feature_contract.json"
RETRAIN = "Use the target it was trained for, or capture and train again for this one"


def target_fingerprint(artifact: Artifact) -> dict[str, str]:
    """What ``fingerprint.json`` states, after a look at the files themselves.

    Raises ``StageError`` if a file of the target was changed after the artifact was made. Reads the weights once.
    """
    from specflow.config.columns import plain_table
    from specflow.features.comparison import rows_of
    from specflow.features.contract import FINGERPRINT_FIELDS, Difference
    from specflow.targets.fingerprint import fingerprint

    stated: dict[str, str] = json.loads(artifact.file(FINGERPRINT_FILE).read_text(encoding="utf-8"))
    found = fingerprint(artifact.path)
    changed = tuple(
        Difference(name, stated.get(name), found[name])
        for name in FINGERPRINT_FIELDS
        if stated.get(name) != found[name]
    )
    if changed:
        table = plain_table([("field", "when it was made", "its files now"), *rows_of(changed)], left=3)
        raise StageError(
            f"target {place(artifact)} was changed after it was made:\n{_indented(table)}\n"
            "  Remove the artifact and run `target` again; what was made from it before stays with the old one"
        )
    return stated


def target_side(artifact: Artifact, *, precision: str | None = None) -> Side:
    """The target of an artifact; ``precision`` where it is about to be run in one."""
    from specflow.features.comparison import Side

    fingerprint = target_fingerprint(artifact)
    config = json.loads(artifact.file("config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    commit = fingerprint.get("source_commit")
    values: dict[str, Any] = {
        **fingerprint,
        "hidden_size": int(config["hidden_size"]),
        "layers": int(config["num_hidden_layers"]),
        "layer_convention": "output_of_layer",
        "last_hidden": "post_final_norm",
    }
    if precision is not None:
        values["precision"] = precision
    where = f"{place(artifact)}, commit {commit}" if commit else place(artifact)
    return Side(what="target", where=where, values=values)


def features_side(artifact: Artifact) -> Side:
    from specflow.features.comparison import Side
    from specflow.features.contract import CONTRACT_FILE, FeatureContract

    contract = _readable(lambda: FeatureContract.read(artifact.file(CONTRACT_FILE)), artifact)
    return Side(what="features", where=place(artifact), values=contract.to_dict())


def drafter_side(artifact: Artifact) -> Side:
    """The contract of the features that a drafter was trained on."""
    from specflow.drafters.loading import read_manifest
    from specflow.features.comparison import Side

    manifest = _readable(lambda: read_manifest(artifact.path), artifact)
    return Side(what="drafter", where=place(artifact), values=manifest.feature_contract.to_dict())


def export_side(artifact: Artifact) -> Side:
    from specflow.features.comparison import Side
    from specflow.features.contract import FeatureContract

    contract = _readable(lambda: FeatureContract.read(artifact.file(EXPORTED_CONTRACT)), artifact)
    return Side(what="export", where=place(artifact), values=contract.to_dict())


def side_of(artifact: Artifact) -> Side:
    """Of an artifact of a kind that states a contract: target, features, drafter or export."""
    return {"target": target_side, "features": features_side, "drafter": drafter_side, "export": export_side}[
        artifact.kind
    ](artifact)


def require_fit(use: Use, first: Side, second: Side, context: Context, *, remedy: str) -> None:
    """Raise ``StageError`` with the table if they do not belong together; log what differs and may."""
    from specflow.features.comparison import compare, rows_of

    found = compare(use, first, second)
    if found.refused:
        raise StageError(refusal(found, remedy=remedy))
    for field, one, two in rows_of(found.told):
        context.log(f"{field} differs, which is allowed: {first.what} {one}, {second.what} {two}")


def same_contracts(inputs: Inputs, context: Context) -> None:
    """``StageError`` unless drafter and export are of this target, and of each other."""
    from specflow.features.comparison import Use

    drafter, export = drafter_side(inputs.one("drafter")), export_side(inputs.one("export"))
    require_fit(Use.DRAFTS_FOR, drafter, target_side(inputs.one("target")), context, remedy=RETRAIN)
    require_fit(Use.EXPORT_OF, export, drafter, context, remedy="Export the drafter again")


def refusal(found: Comparison, *, remedy: str) -> str:
    """The message: what was compared, both sides and where they are, the table, what to do."""
    return f"{found.use.value} do not fit together:\n{_indented(str(found))}\n  {remedy}"


def place(artifact: Artifact) -> str:
    return f"{artifact.kind}/{artifact.key[:12]} ({artifact.path})"


def _readable(read: Callable[[], Read], artifact: Artifact) -> Read:
    try:
        return read()
    except (ValueError, KeyError, TypeError) as error:
        raise StageError(f"{place(artifact)} has no readable feature contract: {error}") from error


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
