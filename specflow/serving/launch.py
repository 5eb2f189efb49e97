"""SGLang launch flags, generated from the drafter's manifest so that no flag is ever typed by hand.

Algorithms disagree about ``block``: for DFLASH the flag is the verify window, anchor included, for DSPARK the number
of proposals. The layout of each method is the only place that knows it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.serving.layouts.registry import get_layout
from specflow.serving.layouts.state_drafters import TREE
from specflow.serving.schedule_files import SECTION

TARGET = "<target>"
DRAFT = "draft"
MODE_VARIABLE = "SGLANG_RAGGED_VERIFY_MODE"
STATIC, CAP_ACCEPT, COMPACT = MODES = ("static", "cap-accept", "compact")
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


def launch_command(flags: Mapping[str, str], *, environment: Mapping[str, str] | None = None) -> str:
    """The flags as one shell command, its variables before it; a flag with an empty value is a switch."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    quoted = [w if w == TARGET else shlex.quote(w) for w in launch_arguments(flags)]
    return " ".join([*variables, "python", "-m", "sglang.launch_server", *quoted])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How much of a block is verified: the engine's variables, and the files that it then reads."""

    flags: Mapping[str, str]
    environment: Mapping[str, str]


def offered_modes(manifest: Manifest) -> list[str]:
    """Modes of verification that this drafter can be served in."""
    if not (manifest.get("geometry") or {}).get("confidence"):
        return [STATIC]
    return [mode for mode in MODES if mode != COMPACT or "costs" in (manifest.get(SECTION) or {})]


def scheduling(manifest: Manifest, *, mode: str, draft_path: str = DRAFT) -> Scheduling:
    """``static``: every proposal is verified. ``compact``: as many as pay at the measured costs. ``cap-accept``: all,
    and no more are accepted than ``compact`` would have verified: what it would do, not what it would save.

    Raises ``ValueError`` where the drafter has no confidence, or ``compact`` has no costs: without them the engine
    takes rows for free and verifies everything.
    """
    if mode == STATIC:
        return Scheduling(flags={}, environment={})
    offered = offered_modes(manifest)
    if mode not in offered:
        why = "it has no costs (flow `release`)" if len(offered) > 1 else "it has no confidence, as DSpark's have"
        raise ValueError(f"mode {mode!r}: expected one of {offered} for this drafter: {why}")
    files = manifest.get(SECTION) or {}
    flags = {}
    if "temperatures" in files:
        flags["--speculative-dspark-confidence-sts-path"] = f"{draft_path}/{files['temperatures']['file']}"
    if "costs" in files:
        flags["--speculative-dspark-sps-table-path"] = f"{draft_path}/{files['costs']['file']}"
    return Scheduling(flags=flags, environment={MODE_VARIABLE: mode})


def launch_record(manifest: Manifest, *, engine: str, dtype: str) -> dict[str, Any]:
    """Content of ``launch.json``. Paths are relative to the export; the target's is left to the user."""
    flags = launch_flags(manifest, dtype=dtype)
    modes = {mode: scheduling(manifest, mode=mode) for mode in offered_modes(manifest) if mode != STATIC}
    return {
        "engine": engine,
        "flags": flags,
        "command": launch_command(flags),
        "scheduled": {
            mode: launch_command({**flags, **found.flags}, environment=found.environment)
            for mode, found in modes.items()
        },
        "paths": f"{DRAFT!r} is relative to this file; replace {TARGET} by the target's directory or hub id",
    }
