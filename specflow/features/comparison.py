"""Do two things belong together? Contracts compared field by field, by what they are compared for.

A side is a target, stored features, a drafter or an export, as far as it states the fields of a feature contract.
``USES`` is the one place that says which fields must agree for which use, and which may differ but are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from specflow.config.columns import plain_table
from specflow.features.contract import Difference, FeatureContract

SHORTEST_HASH = 12
NOT_STATED = "not stated"


class Rule(Enum):
    """What a field of two sides must satisfy."""

    EQUAL = "equal"
    AMONG = "among"
    """Layer ids: those of the second side are among those of the first."""
    REACHABLE = "reachable"
    """Layer ids against a target: each is one of its layers, and not the last."""
    TOLD = "told"
    """May differ; the difference is reported."""


Rules = Mapping[str, Rule]

_SAME_TARGET: Rules = dict.fromkeys(
    ("weights_sha256", "config_sha256", "tokenizer_sha256", "template_sha256", "hidden_size"), Rule.EQUAL
)
_SAME_MEANING: Rules = dict.fromkeys(("layer_convention", "last_hidden"), Rule.EQUAL)


class Use(Enum):
    """What two sides are compared for, and the rules for it. Fields without a rule may differ and are told."""

    CAPTURED_FROM = "features and the target they were captured from"
    READS = "features and what a drafter reads of them"
    TRAINED_ON = "a drafter and the features it was trained on"
    DRAFTS_FOR = "a drafter and the target it drafts for"
    EXPORT_OF = "an export and the drafter it was made of"
    SAME = "two of a kind"


USES: Mapping[Use, Rules] = {
    Use.CAPTURED_FROM: {**_SAME_TARGET, **_SAME_MEANING, "layer_ids": Rule.REACHABLE},
    Use.READS: {"hidden_size": Rule.EQUAL, **_SAME_MEANING, "layer_ids": Rule.AMONG},
    Use.TRAINED_ON: {**_SAME_TARGET, **_SAME_MEANING, "layer_ids": Rule.EQUAL},
    Use.DRAFTS_FOR: {**_SAME_TARGET, **_SAME_MEANING, "layer_ids": Rule.REACHABLE},
    Use.EXPORT_OF: dict.fromkeys(FeatureContract.__dataclass_fields__, Rule.EQUAL),
    Use.SAME: {},
}
USE_OF_KINDS: Mapping[tuple[str, str], Use] = {
    ("features", "target"): Use.CAPTURED_FROM,
    ("drafter", "target"): Use.DRAFTS_FOR,
    ("export", "target"): Use.DRAFTS_FOR,
    ("drafter", "features"): Use.TRAINED_ON,
    ("export", "features"): Use.TRAINED_ON,
    ("export", "drafter"): Use.EXPORT_OF,
}
"""What artifacts of two kinds are to each other, the one that was made later first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two things compared: what it is, where it is, and what it states."""

    what: str
    """``target``, ``features``, ``drafter`` or ``export``."""
    where: str
    """Key and path, or the place in the configuration."""
    values: Mapping[str, Any]
    """Fields of a contract; a target states ``layers``, its number of decoder layers, in place of ``layer_ids``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was found; ``refused`` empty means that the two belong together."""

    use: Use
    first: Side
    second: Side
    refused: tuple[Difference, ...]
    told: tuple[Difference, ...]

    def __str__(self) -> str:
        """Both sides by name and place, and the table of what must agree and does not."""
        width = max(len(self.first.what), len(self.second.what))
        sides = [f"{side.what:<{width}}  {side.where}" for side in (self.first, self.second)]
        return "\n".join([*sides, plain_table([self.header, *rows_of(self.refused)], left=3)])

    @property
    def header(self) -> tuple[str, str, str]:
        if self.first.what == self.second.what:
            return "field", "first", "second"
        return "field", self.first.what, self.second.what


def compare(use: Use, first: Side, second: Side) -> Comparison:
    """Compare the fields that ``use`` has rules for, and those that both state."""
    rules = USES[use]
    refused: list[Difference] = []
    told: list[Difference] = []
    for field in dict.fromkeys((*FeatureContract.__dataclass_fields__, *rules)):
        rule = rules.get(field, Rule.TOLD)
        one, two = _stated(first, field, rule), _stated(second, field, rule)
        if rule is Rule.TOLD:
            if NOT_STATED not in (one, two) and one != two:
                told.append(Difference(field, one, two))
        elif not _holds(rule, one, two):
            refused.append(Difference(field, one, two))
    return Comparison(use=use, first=first, second=second, refused=tuple(refused), told=tuple(told))


def _stated(side: Side, field: str, rule: Rule) -> Any:
    if rule is Rule.REACHABLE and "layers" in side.values:
        return _Reach(int(side.values["layers"]))
    value = side.values.get(field, NOT_STATED)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Reach:
    """The layers of a target whose output can be captured."""

    layers: int

    def __str__(self) -> str:
        return f"0 to {self.layers - 2} of {self.layers} layers"

    def holds(self, layer_ids: Any) -> bool:
        return isinstance(layer_ids, tuple) and all(0 <= k < self.layers - 1 for k in layer_ids)


def _holds(rule: Rule, one: Any, two: Any) -> bool:
    if NOT_STATED in (one, two):
        return False
    if rule is Rule.REACHABLE:
        # One side is a target; two contracts of one target hold the same question.
        reach, ids = (one, two) if isinstance(one, _Reach) else (two, one)
        return reach.holds(ids) if isinstance(reach, _Reach) else False
    if rule is Rule.AMONG:
        return set(two) <= set(one)
    return bool(one == two)


def rows_of(differences: Iterable[Difference]) -> Iterator[tuple[str, str, str]]:
    """A row of text for each difference; hashes are cut as far as they stay distinguishable."""
    for found in differences:
        yield found.field, *_shortened(found.ours, found.theirs)


def _shortened(one: Any, two: Any) -> tuple[str, str]:
    first, second = (", ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in (one, two))
    common = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    length = max(SHORTEST_HASH, common + 4)
    return _cut(first, length), _cut(second, length)


def _cut(text: str, length: int) -> str:
    """Only hashes are cut: other values are short, and each of their characters tells something."""
    is_hash = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return f"{text[:length]}..." if is_hash and length < 64 else text
