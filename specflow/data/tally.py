"""Counts over tokenised rows, formed piece by piece and added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.data.documents import TokenDocument
from specflow.data.quarantine import DataError, Quarantined, reasons
from specflow.data.tokenizing import Outcome

COUNTS = (
    "truncated",
    "windowed",
    "retokenised_differs",
    "history_rewritten",
    "reasoning_dropped",
    "without_turn_end",
    "ended_by_length",
)
SHARE_EDGES = tuple(n / 10 for n in range(11))
MODES = {True: "on", False: "off", None: "template default"}


@dataclass(slots=True)
class Tally:
    """Sums over some rows. ``lengths`` and ``shares`` count documents by bin; groups are ``split/kind``.

    ``train_tokens`` counts training documents by their number of tokens.
    """

    rows: int = 0
    documents: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    shares: Counter[tuple[str, int]] = field(default_factory=Counter)
    train_tokens: Counter[int] = field(default_factory=Counter)
    thinking: Counter[str] = field(default_factory=Counter)
    groups: Counter[tuple[str, str]] = field(default_factory=Counter)
    quarantined: list[Quarantined] = field(default_factory=list)
    """Rows that give no document."""
    lost: Counter[str] = field(default_factory=Counter)
    """Documents that cannot be used, by reason, of rows that give others."""
    thinking_switch: str | None = None
    """The argument by which the template is told of the thinking mode."""

    def add(self, outcome: Outcome) -> None:
        self.rows += 1
        self.counts.update(outcome.notes)
        self.quarantined += outcome.quarantined
        self.lost.update(outcome.lost)
        for document in outcome.documents:
            self._add_document(document)

    def _add_document(self, document: TokenDocument) -> None:
        group, tokens, supervised = f"{document.split}/{document.kind}", len(document.ids), sum(document.supervised)
        self.documents += 1
        self.lengths[length_bin(tokens)] += 1
        if document.split == "train":
            self.train_tokens[tokens] += 1
        self.shares[group, min(10 * supervised // tokens, 9)] += 1
        self.thinking[MODES[document.thinking]] += 1
        self.groups[group, "documents"] += 1
        self.groups[group, "tokens"] += tokens
        self.groups[group, "supervised_tokens"] += supervised

    def merge(self, other: Tally) -> None:
        self.rows += other.rows
        self.documents += other.documents
        self.quarantined += other.quarantined
        self.thinking_switch = other.thinking_switch
        for name in ("counts", "lost", "lengths", "shares", "train_tokens", "thinking", "groups"):
            getattr(self, name).update(getattr(other, name))

    def metrics(self) -> dict[str, Any]:
        """Of at least one document."""
        tokens, supervised = self._sum("tokens"), self._sum("supervised_tokens")
        names = sorted({group for group, _ in self.groups})
        return {
            "rows": self.rows,
            "documents": self.documents,
            "tokens": tokens,
            "supervised_tokens": supervised,
            "supervised_share": supervised / tokens,
            "counts": {name: self.counts[name] for name in COUNTS},
            "thinking": dict(sorted(self.thinking.items())),
            "thinking_switch": self.thinking_switch,
            "quarantined": len(self.quarantined),
            "quarantine_reasons": reasons(self.quarantined),
            "documents_lost": dict(sorted(self.lost.items())),
            "lengths": self._length_histogram(),
            "supervised_shares": self._share_histogram(names),
            "by_kind": {
                group: {what: self.groups[group, what] for what in ("documents", "tokens", "supervised_tokens")}
                | {"supervised_shares": self._share_histogram([group])}
                for group in names
            },
        }

    def _sum(self, what: str) -> int:
        return sum(count for (_, counted), count in self.groups.items() if counted == what)

    def _length_histogram(self) -> dict[str, list[float]]:
        """Edges are 0, then powers of two from 16 up to above the longest document."""
        last = max(self.lengths)
        edges = [0.0, *(16.0 * 2**n for n in range(last + 1))]
        return {"edges": edges, "counts": [float(self.lengths[n]) for n in range(last + 1)]}

    def _share_histogram(self, groups: Sequence[str]) -> dict[str, list[float]]:
        counts = [float(sum(self.shares[group, n] for group in groups)) for n in range(10)]
        return {"edges": list(SHARE_EDGES), "counts": counts}


def length_bin(tokens: int) -> int:
    """0 below 16 tokens, then one bin for each doubling."""
    return (tokens // 16).bit_length()


def refuse_useless(tally: Tally, *, max_length: int) -> None:
    """Raise :class:`DataError` if training on the corpus would train on nothing or on everything."""
    if tally.documents:
        return
    causes = Counter(q.reason for q in tally.quarantined)
    if not tally.rows:
        raise DataError("there are no conversations; regenerate made none")
    if set(causes) == {"all_tokens_supervised"}:
        raise DataError(
            f"every token of all {tally.rows} conversations would be supervised; expected prompts, which never are"
        )
    if set(causes) == {"only_tool_calls"}:
        raise DataError(
            f"every answer of all {tally.rows} conversations calls tools, and supervise_tool_calls = false leaves "
            "them out; set it to true, or add conversations with other answers"
        )
    if causes["truncated_away"]:
        raise DataError(
            f"no supervised token is left in any of {tally.rows} conversations; the cause is truncation in "
            f"{causes['truncated_away']} of them: their answers begin after max_length = {max_length} tokens. "
            "Raise max_length"
        )
    first = next((q.detail for q in tally.quarantined if q.detail), "")
    raise DataError(
        f"no supervised token was found in any of {tally.rows} conversations (reasons: {sorted(causes)}"
        f"{f'; the first: {first}' if first else ''}); check that the chat template renders assistant turns"
    )
