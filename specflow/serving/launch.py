"""SGLang launch flags, generated from the drafter's manifest so that no flag is ever typed by hand.

Algorithms disagree about ``block``: for DFLASH the flag is the verify window, anchor included, for DSPARK the number
of proposals. The layout of each method is the only place that knows it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specflow.serving.layouts.registry import get_layout
from specflow.serving.layouts.state_drafters import TREE

TARGET = "<target>"
DRAFT = "draft"
TOPK = "--speculative-eagle-topk"
TOKEN_MAP = "--speculative-token-map"
"""A file in the draft's directory, by its name there."""

Manifest = Mapping[str, Any]


def launch_flags(
    manifest: Manifest, *, target_path: str = TARGET, draft_path: str = DRAFT, dtype: str = "bfloat16"
) -> dict[str, str]:
    """Flags of ``sglang.launch_server`` for this drafter.

    Raises ``ValueError`` for a method without an SGLang algorithm, a tree where it drafts none, or a manifest that
    contradicts itself.
    """
    method = str(manifest.get("method"))
    speculative = get_layout(method).launch_flags(manifest)
    if manifest.get(TREE) and TOPK not in speculative:
        raise ValueError(f"a tree: SGLang drafts chains only with {method}; leave the tree out")
    if TOKEN_MAP in speculative:
        speculative[TOKEN_MAP] = str(Path(draft_path) / speculative[TOKEN_MAP])
    return {
        "--model-path": target_path,
        "--speculative-algorithm": speculative.pop("--speculative-algorithm"),
        "--speculative-draft-model-path": draft_path,
        **speculative,
        "--dtype": dtype,
    }


def launch_arguments(flags: Mapping[str, str]) -> list[str]:
    """The flags as words; a flag with an empty value is a switch."""
    return [word for flag, value in flags.items() for word in (flag, value) if word]


def launch_command(flags: Mapping[str, str]) -> str:
    """The flags as one shell command; a flag with an empty value is a switch."""
    quoted = [w if w == TARGET else shlex.quote(w) for w in launch_arguments(flags)]
    return " ".join(["python", "-m", "sglang.launch_server", *quoted])


def launch_record(manifest: Manifest, *, engine: str, dtype: str) -> dict[str, Any]:
    """Content of ``launch.json``. Paths are relative to the export; the target's is left to the user."""
    flags = launch_flags(manifest, dtype=dtype)
    return {
        "engine": engine,
        "flags": flags,
        "command": launch_command(flags),
        "paths": f"{DRAFT!r} is relative to this file; replace {TARGET} by the target's directory or hub id",
    }
