"""What is damaged in a features artifact, all of it: contract, store, and each shard by number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from specflow.features.contract import CONTRACT_FILE, FeatureContract
from specflow.features.location import Bucket, Directory, Place, kept_elsewhere
from specflow.features.reader import STORE, listed_shards, require_listed, shard_name
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
    """Look at every shard, also after damage was found. Never raises for damage.

    Raises ``StorageError`` where object storage cannot be reached.
    """
    found = Inspection()
    try:
        found.contract = FeatureContract.read(path / CONTRACT_FILE)
    except (OSError, ValueError, TypeError, KeyError) as error:
        found.problems.append(f"{path / CONTRACT_FILE}: {error}")
    bucket = kept_elsewhere(path)
    root: Place = bucket or Directory(path / STORE)
    listed: dict[str, str] = {}
    stated = None
    try:
        listed = listed_shards(path) if bucket else {}
        found.count = len(listed)
        attributes = json.loads(root.read(ROOT))["attributes"]
        found.count, stated = int(attributes["shards"]), attributes["contract_hash"]
        if bucket:
            require_listed(path, listed, found.count)
    except (OSError, ValueError, TypeError, KeyError, DamagedShard) as error:
        found.problems.append(f"{root}/{ROOT}: {error}; the store was never finished, or is damaged")
        if not listed:
            return found
        found.count = len(listed)  # the artifact knows what is to be there, so each of them can be looked at
    if bucket and found.contract is not None:
        found.problems += _other_contract(bucket, path)
    if found.contract is not None and stated is not None and found.contract.hash != stated:
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


def _other_contract(bucket: Bucket, path: Path) -> list[str]:
    """What is wrong with the copy of the contract that lies beside the shards."""
    try:
        same = bucket.read(CONTRACT_FILE) == (path / CONTRACT_FILE).read_bytes()
    except FileNotFoundError:
        return [f"{bucket}/{CONTRACT_FILE} is missing"]
    return [] if same else [f"{bucket}/{CONTRACT_FILE} is not the artifact's"]
