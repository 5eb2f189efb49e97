"""Any draft directory, with what comes with it: our manifest beside its files, the target, the trained drafter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specflow.drafters.files import drafter_directory
from specflow.serving.draft import (
    CONFIG,
    FINGERPRINT_UNKNOWN,
    GEOMETRY_UNKNOWN,
    MANIFEST,
    MANIFEST_UNKNOWN,
    TARGET_UNKNOWN,
    TRAINED_UNKNOWN,
    WEIGHTS,
    Draft,
    read_draft,
    read_json,
)
from specflow.serving.layouts.registry import get_layout, method_of

OURS = ("method", "block_size", "num_proposals", "layer_ids")
"""Keys that a manifest of ours has; a file of that name may be somebody else's."""
FINGERPRINT = "fingerprint.json"
USUAL_DTYPE = "bfloat16"


def open_draft(directory: Path, *, target: Path | None = None, drafter: Path | None = None) -> Draft:
    """Read a directory (or the artifact that holds it), the target's directory and the trained drafter's.

    Raises ``ValueError`` where the directory holds no draft at all.
    """
    place = drafter_directory(directory)
    config, manifest = read_json(place / CONFIG), manifest_beside(place)
    known: Mapping[str, Any] = {} if manifest is None else manifest
    return read_draft(
        place,
        trained=TRAINED_UNKNOWN if drafter is None else _trained(drafter),
        geometry=known.get("geometry", GEOMETRY_UNKNOWN),
        manifest=MANIFEST_UNKNOWN if manifest is None else manifest,
        dtype=str(known.get("dtype") or config.get("dtype") or config.get("torch_dtype") or USUAL_DTYPE),
        target=TARGET_UNKNOWN if target is None else text_config(target),
        token_ids=None if target is None else _token_ids(target),
        fingerprint=FINGERPRINT_UNKNOWN if target is None else _fingerprint(target),
    )


def manifest_beside(place: Path) -> dict[str, Any] | None:
    """Our manifest in a draft directory; none where it was not exported here."""
    if not (place / MANIFEST).exists():
        return None
    found = read_json(place / MANIFEST)
    return found if all(key in found for key in OURS) else None


def manifest_of(place: Path) -> dict[str, Any]:
    """Our manifest, or as much of one as the config of a public draft says: what a launch needs.

    Raises ``ValueError`` where its method is not known, or does not say how many tokens it proposes.
    """
    manifest = manifest_beside(place)
    if manifest is not None:
        return manifest
    config = read_json(place / CONFIG)
    method = method_of(config)
    layout = get_layout(method)
    geometry = layout.geometry_of(layout.as_read(config, {})[0])
    if "steps" in geometry:
        rows, proposals, from_anchor = int(geometry["steps"]) + 1, int(geometry["steps"]), True
    elif "block_size" in geometry:
        rows, from_anchor = int(geometry["block_size"]), bool(geometry.get("sample_from_anchor", False))
        proposals = rows if from_anchor else rows - 1
    else:
        raise ValueError(
            f"{place}: a draft of {method} does not say how many tokens it proposes, and has no {MANIFEST}"
        )
    return {
        "method": method,
        "block_size": rows,
        "num_proposals": proposals,
        "sample_from_anchor": from_anchor,
        "dtype": config.get("dtype") or config.get("torch_dtype") or USUAL_DTYPE,
    }


def text_config(target: Path) -> dict[str, Any]:
    """The target's configuration; of a model for more than text, the text part."""
    config = read_json(target / CONFIG)
    return dict(config.get("text_config") or config)


def _trained(drafter: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(str(drafter_directory(drafter) / WEIGHTS))


def _token_ids(target: Path) -> dict[str, int] | None:
    if not any(target.glob("tokenizer*")):
        return None
    from transformers import AutoTokenizer

    found: dict[str, int] = AutoTokenizer.from_pretrained(target).get_vocab()
    return found


def _fingerprint(target: Path) -> Mapping[str, str]:
    """As the target's artifact states it; a directory that is no artifact states none."""
    path = target / FINGERPRINT
    return read_json(path) if path.exists() else FINGERPRINT_UNKNOWN
