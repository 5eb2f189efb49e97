"""The gate before ``load``: a parity run must have proved this export behind a server like this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specflow.stages.contract import Artifact, Inputs, StageError

if TYPE_CHECKING:
    from specflow.stages.draft_server import Drafting

OVERRIDE = "or measure it all the same with `load.unproven: true` (--unproven), which the record will say"
PATHS = ("model_path", "speculative_draft_model_path")
"""Settings that name places; what lies there is compared by the artifacts' keys."""


def proof_of(inputs: Inputs, *, unproven: bool) -> dict[str, Any] | None:
    """The record of parity, none where it is missing and may be.

    Raises ``StageError`` where it is missing, or of another export or target.
    """
    parity = inputs.optional("parity")
    if parity is None:
        if unproven:
            return None
        raise StageError(
            "load: no parity run has proved this export: a server with a broken draft answers rightly and accepts "
            f"nothing. Run `specflow parity` first, in a flow where `load` needs it, {OVERRIDE}"
        )
    for kind in ("export", "target"):
        _same_input(parity, inputs.one(kind))
    record: dict[str, Any] = json.loads(parity.file("parity.json").read_text(encoding="utf-8"))
    return {"key": parity.key, **record}


def require_proved(proof: Mapping[str, Any] | None, server: Drafting) -> None:
    """``StageError`` unless the server says of itself what the one that was proved said."""
    if proof is None:
        return
    engine = proof["engine"]
    found = {s.name: s.found for s in server.settings if s.name not in PATHS} | {"version": server.version}
    proved = {**{n: v for n, v in engine["settings"].items() if n not in PATHS}, "version": engine["version"]}
    wrong = [f"\n  {name}: {proved.get(name)} was proved, {value} runs" for name, value in found.items()
             if proved.get(name) != value]  # fmt: skip
    if wrong:
        raise StageError(f"load: the server is another than the one that parity proved:{''.join(wrong)}")


def _same_input(parity: Artifact, wanted: Artifact) -> None:
    had = parity.inputs.get(wanted.kind)
    if had is not None and had != wanted.key:
        raise StageError(
            f"load: parity/{parity.key[:12]} proved {wanted.kind} {had[:12]}, this one is {wanted.key[:12]}; {OVERRIDE}"
        )
