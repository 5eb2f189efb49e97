"""SGLang launch flags, generated from the drafter's manifest so that no flag is ever typed by hand.

Algorithms disagree about ``block``: for DFLASH the flag is the verify window, anchor included, for DSPARK the number
of proposals. The layout of each method is the only place that knows it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from specflow.serving.layouts.registry import get_layout

TARGET = "<target>"
DRAFT = "draft"

Manifest = Mapping[str, Any]


def launch_flags(
    manifest: Manifest, *, target_path: str = TARGET, draft_path: str = DRAFT, dtype: str = "bfloat16"
) -> dict[str, str]:
    """Flags of ``sglang.launch_server`` for this drafter.

    Raises ``ValueError`` for a method without an SGLang algorithm, or a manifest that contradicts itself.
    """
    speculative = get_layout(str(manifest.get("method"))).launch_flags(manifest)
    return {
        "--model-path": target_path,
        "--speculative-algorithm": speculative.pop("--speculative-algorithm"),
        "--speculative-draft-model-path": draft_path,
        **speculative,
        "--dtype": dtype,
    }


def launch_command(flags: Mapping[str, str]) -> str:
    """The flags as one shell command; a flag with an empty value is a switch."""
    words = [word for flag, value in flags.items() for word in (flag, value) if word]
    quoted = [w if w == TARGET else shlex.quote(w) for w in words]
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
