"""Documents of several slices as one set: nothing that is held out in one slice is trained on in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specflow.data.documents import TokenDocument

UNUSED = "unused"
"""Split of documents that are neither trained nor measured on. They keep their place: features are stored by it."""


@dataclass(slots=True)
class Pool:
    """Slices from the oldest to the newest, each with all its documents."""

    slices: Sequence[Sequence[TokenDocument]]
    heldout_newest: int | None = None
    """Slices whose held-out documents are measured on; none: all."""

    def documents(self) -> Iterator[TokenDocument]:
        """All documents in order. Ids are unique: one that was used before is followed by the slice's number."""
        heldout = {_asked(d) for documents in self.slices for d in documents if d.split == "heldout"}
        measured_from = 0 if self.heldout_newest is None else len(self.slices) - self.heldout_newest
        used: set[str] = set()
        for number, documents in enumerate(self.slices):
            for document in documents:
                split = document.split
                if (split == "train" and _asked(document) in heldout) or (
                    split == "heldout" and number < measured_from
                ):
                    split = UNUSED
                name = document.id if document.id not in used else _other_name(document.id, number, used)
                used.add(name)
                yield replace(document, id=name, split=split)


def counts(documents: Sequence[TokenDocument]) -> dict[str, int]:
    """Documents by split, all splits named."""
    found = Counter(document.split for document in documents)
    return {split: found[split] for split in ("train", "heldout", UNUSED)}


def _asked(document: TokenDocument) -> tuple[int, ...]:
    """What the target was asked; a document without a prompt is known by all its tokens."""
    return tuple(document.prompt_ids or document.ids)


def _other_name(name: str, number: int, used: set[str]) -> str:
    found, count = f"{name}@{number}", 1
    while found in used:
        count += 1
        found = f"{name}@{number}.{count}"
    return found
