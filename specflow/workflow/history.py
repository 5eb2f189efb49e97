"""What earlier artifacts tell about a new one: why it has to be made, and how long that took before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specflow.stages.contract import Estimate
from specflow.workflow.commit import Recipe
from specflow.workflow.record import ArtifactRecord

NAMED_CHANGES = 4


class History:
    """Records of a store, oldest first."""

    def __init__(self, records: Sequence[ArtifactRecord]) -> None:
        self._records = records

    def latest(self, recipe: Recipe) -> ArtifactRecord | None:
        """The newest artifact of the same stage and item."""
        same = (r for r in reversed(self._records) if (r.stage, r.item) == (recipe.stage, recipe.item))
        return next(same, None)

    def why(self, recipe: Recipe) -> str:
        """Why the recipe's artifact does not exist, against the newest of the same stage and item."""
        last = self.latest(recipe)
        if last is None:
            return "never made"
        reasons = []
        changed = list(changes(by_name(last.key_parameters), by_name(recipe.key_parameters)))
        if changed:
            more = f" and {len(changed) - NAMED_CHANGES} more" if len(changed) > NAMED_CHANGES else ""
            reasons.append(f"parameters changed: {', '.join(changed[:NAMED_CHANGES])}{more}")
        if last.code_version != recipe.code_version:
            reasons.append("code changed")
        kinds = sorted({*last.inputs, *recipe.inputs})
        moved = [k for k in kinds if sorted(last.inputs.get(k, [])) != sorted(recipe.inputs.get(k, []))]
        if moved:
            reasons.append(f"input {', '.join(moved)} changed")
        return "; ".join(reasons) or "removed since it was last made"

    def estimate(self, recipe: Recipe, stated: Estimate) -> Estimate:
        """The stage's own estimate, with the last measured duration (and size where none is stated)."""
        last = self.latest(recipe)
        if last is None:
            return stated
        size = stated.bytes if stated.bytes is not None else last.bytes
        return Estimate(bytes=size, seconds=last.seconds, note=stated.note or "as long as last time")


def by_name(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Files that no parameter names, by their own name."""
    files = {name: {"sha256": content} for name, content in parameters.get("external_files", ())}
    return {**parameters, **({"file": files} if files else {}), "external_files": None}


def changes(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """``path old -> new`` for every difference between two JSON values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            yield from changes(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for position, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from changes(before, after, f"{where}.{position}")
    elif old != new:
        if where.endswith("sha256"):
            yield f"content of {where.removesuffix('.sha256')}"
        else:
            yield f"{where} {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
