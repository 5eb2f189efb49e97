"""What is damaged in a features artifact, all of it: contract, store, and each shard by number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.location import Directory, Place, kept_elsewhere
from specflow.features.reader import STORE, listed_shards, shard_name
from specflow.features.shard import DamagedShard, verify_shard

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
    bucket = kept_elsewhere(path)
    root: Place = bucket or Directory(path / STORE)
    try:
        attributes = json.loads(root.read(ROOT))["attributes"]
        found.count, stated = int(attributes["shards"]), attributes["contract_hash"]
        listed = listed_shards(path, found.count) if bucket else {}
    except (OSError, ValueError, TypeError, KeyError, DamagedShard) as error:
        found.problems.append(f"{root}/{ROOT}: {error}; the store was never finished, or is damaged")
        return found
    if found.contract is not None and found.contract.hash != stated:
        found.problems.append(f"{path / CONTRACT_FILE} is not the contract that the store was written under")
    for number in range(found.count):
        place = root.child(shard_name(number))
        try:
            verify_shard(place, checksums=checksums, marker=listed.get(shard_name(number)))
        except (DamagedShard, OSError) as error:
            found.shards[number] = str(error)
    known = {ROOT, CONTRACT_FILE, *(shard_name(number) for number in range(found.count))}
    tops = {name.partition("/")[0] for name in root.sizes()}
    tops |= {p.name for p in root.path.iterdir()} if isinstance(root, Directory) else set()  # empty directories
    found.problems += [f"{root}/{name} does not belong to the store" for name in sorted(tops - known)]
    return found
