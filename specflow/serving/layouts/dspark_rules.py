"""Lint of what DSpark has beside DFlash's backbone: the number of proposals, and the heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specflow.serving.draft import Draft, Finding

SECTIONS = ("dflash_config", "dspark_config")
HEAD_TYPES = {"markov": "vanilla", "gated": "gated", "rnn": "rnn"}
"""Our names of the sequential heads, and the engine's."""


def head_keys(geometry: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine must be told of the heads; it reads these at the top level only."""
    return {
        "markov_rank": int(geometry["head_rank"]),
        "markov_head_type": HEAD_TYPES[geometry["head"]],
        "sample_from_anchor": bool(geometry["sample_from_anchor"]),
        "confidence_head_with_markov": True,
        "enable_confidence_head": bool(geometry["confidence"]),
    }


def rows_of(proposals: int, *, sample_from_anchor: bool) -> int:
    """Rows of a block: our ``block_size``."""
    return proposals if sample_from_anchor else proposals + 1


def block(draft: Draft) -> Iterator[Finding]:
    """``block_size`` is the number of proposals wherever it stands; the rows of our manifest fit it."""
    proposals, rows = int(draft.manifest["num_proposals"]), int(draft.manifest["block_size"])
    from_anchor = bool(draft.manifest["sample_from_anchor"])
    places = {"block_size": draft.config["block_size"]}
    places |= {f"{name}.block_size": draft.config[name]["block_size"] for name in SECTIONS}
    for where, found in places.items():
        if found != proposals:
            yield Finding(check="block", where=where, found=repr(found), expected=f"{proposals}, the proposals")
    wanted = rows_of(proposals, sample_from_anchor=from_anchor)
    if rows != wanted:
        yield Finding(
            check="block",
            where="manifest block_size",
            found=repr(rows),
            expected=f"{wanted} rows for {proposals} proposals with sample_from_anchor {from_anchor}",
        )


def heads(draft: Draft) -> Iterator[Finding]:
    """Both copies of the heads' keys against the drafter's geometry, and the manifest's layout against it too."""
    for key, want in head_keys(draft.geometry).items():
        for where, section in (("", draft.config), ("dspark_config.", draft.config["dspark_config"])):
            found = section.get(key)
            if found != want or type(found) is not type(want):
                yield Finding(check="heads", where=where + key, found=repr(found), expected=repr(want))
    stated, trained = draft.manifest["sample_from_anchor"], draft.geometry["sample_from_anchor"]
    if stated != trained:
        yield Finding(
            check="heads", where="manifest sample_from_anchor", found=repr(stated), expected=f"{trained!r} (drafter)"
        )
