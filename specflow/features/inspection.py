"""What is damaged in a features artifact, all of it: contract, store, and each shard by number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.shard import DamagedShard, verify_shard
from specflow.features.store import STORE, shard_name

ROOT = "zarr.json"


@dataclass(slots=True)
class Inspection:
    """Nothing in ``problems`` and ``shards`` means: every byte is as it was committed."""

    contract: FeatureContract | None = None
    count: int = 0
    """Shards that the store should have."""
    problems: list[str] = field(default_factory=list)
    """Of the artifact as a whole."""
    shards: dict[int, str] = field(default_factory=dict)
    """What is wrong, by the shard's number."""

    @property
    def damage(self) -> list[str]:
        return [*self.problems, *(text for _, text in sorted(self.shards.items()))]


def inspect_store(path: Path, *, checksums: bool = True) -> Inspection:
    """Look at every shard, also after damage was found. Never raises for damage."""
    found = Inspection()
    try:
        found.contract = FeatureContract.read(path / CONTRACT_FILE)
    except (OSError, ValueError, TypeError, KeyError) as error:
        found.problems.append(f"{path / CONTRACT_FILE}: {error}")
    root = path / STORE
    try:
        attributes = json.loads((root / ROOT).read_text(encoding="utf-8"))["attributes"]
        found.count, stated = int(attributes["shards"]), attributes["contract_hash"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        found.problems.append(f"{root / ROOT}: {error}; the store was never finished, or is damaged")
        return found
    if found.contract is not None and found.contract.hash != stated:
        found.problems.append(f"{path / CONTRACT_FILE} is not the contract that the store was written under")
    for number in range(found.count):
        try:
            verify_shard(root / shard_name(number), checksums=checksums)
        except (DamagedShard, OSError) as error:
            found.shards[number] = str(error)
    known = {ROOT, *(shard_name(number) for number in range(found.count))}
    found.problems += [
        f"{place} does not belong to the store" for place in sorted(root.iterdir()) if place.name not in known
    ]
    return found
