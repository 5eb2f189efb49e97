"""What a round commits when only some of its rows were verified."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """``accepted``: proposals kept; ``trimmed``: those that the cut took; ``committed``: rows of the cache."""

    accepted: int
    trimmed: int
    committed: int


def accept_under_cut(accepted: int, verify_len: int) -> Cut:
    """``accepted`` of all proposals, of which ``verify_len - 1`` were verified; the target's own token comes on top."""
    if accepted < 0 or verify_len < 1:
        raise ValueError(f"{accepted} accepted of {verify_len} rows: expected at least 0 of at least 1")
    kept = min(accepted, verify_len - 1)
    return Cut(accepted=kept, trimmed=accepted - kept, committed=kept + 1)
