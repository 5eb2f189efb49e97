"""Requests to decode, taken from the held-out documents of a tokens artifact."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    id: str
    kind: str
    prompt: tuple[int, ...]


class PromptDocument(Protocol):
    """The part of a tokenised document that a request is made of."""

    @property
    def id(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def prompt_ids(self) -> Sequence[int]: ...


def heldout_requests(documents: Iterable[PromptDocument], *, per_kind: int | None = None) -> list[Request]:
    """The first ``per_kind`` held-out documents of each kind, in file order; documents without a prompt are left out.

    Raises ``ValueError`` if there is none: a measurement on training prompts would flatter the drafter.
    """
    taken: Counter[str] = Counter()
    found: list[Request] = []
    for document in documents:
        if document.split != "heldout" or not document.prompt_ids:
            continue
        if per_kind is not None and taken[document.kind] >= per_kind:
            continue
        taken[document.kind] += 1
        found.append(Request(id=document.id, kind=document.kind, prompt=tuple(document.prompt_ids)))
    if not found:
        raise ValueError("expected at least one held-out document with a prompt, found none: add held-out prompts")
    return found


def requests_hash(requests: Sequence[Request]) -> str:
    """sha256 over ids, kinds and prompt tokens, in order: names the data set of a benchmark."""
    rows = [[r.id, r.kind, list(r.prompt)] for r in requests]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()
