"""SGLang launch flags, generated from the drafter's manifest so that no flag is ever typed by hand.

The engines disagree about ``block``: for DFLASH ``--speculative-num-draft-tokens`` is the verify window, anchor
included, that is our ``block_size``; for DSPARK the block size flag is the number of proposals. The table below
is the only place that knows it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

TARGET = "<target>"
DRAFT = "draft"

Manifest = Mapping[str, Any]


def _dflash(manifest: Manifest) -> dict[str, str]:
    block, proposals = int(manifest["block_size"]), int(manifest["num_proposals"])
    if proposals != block - 1:
        raise ValueError(f"dflash: expected num_proposals = block_size - 1 = {block - 1}, found {proposals}")
    return {"--speculative-algorithm": "DFLASH", "--speculative-num-draft-tokens": str(block)}


_FLAGS: Mapping[str, Callable[[Manifest], dict[str, str]]] = {"dflash": _dflash}


def launch_flags(
    manifest: Manifest, *, target_path: str = TARGET, draft_path: str = DRAFT, dtype: str = "bfloat16"
) -> dict[str, str]:
    """Flags of ``sglang.launch_server`` for this drafter.

    Raises ``ValueError`` for a method without an SGLang algorithm, or a manifest that contradicts itself.
    """
    method = str(manifest.get("method"))
    if method not in _FLAGS:
        raise ValueError(f"expected a method of {sorted(_FLAGS)}, found {method!r} in the drafter's manifest")
    speculative = _FLAGS[method](manifest)
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
