"""The drafters that other drafters start from: a directory, or the key of an artifact in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specflow.config.consistency import Inconsistency
from specflow.config.gate import PROMOTED
from specflow.config.root import Config


def with_found_drafters(config: Config, base: Path) -> tuple[Config, list[Inconsistency]]:
    """The configuration with every ``train.init_from`` as an absolute directory, and those that are none.

    A relative path starts at ``base``; a key is looked up in the configuration's store.
    """
    problems: list[Inconsistency] = []
    found = {}
    for name, drafter in config.drafters.items():
        given = drafter.train.init_from
        if given is None or given == PROMOTED:  # which one that is, the plan finds out
            continue
        places = list(_places(given, base, config.store))
        if len(places) == 1:
            train = drafter.train.model_copy(update={"init_from": str(places[0])})
            found[name] = drafter.model_copy(update={"train": train})
        else:
            expected = f"the directory of a drafter, or the beginning of a key in {config.store / 'drafter'}"
            message = "several drafters" if places else "no such drafter"
            shown = f"{given}: {', '.join(p.name[:16] for p in places)}" if places else given
            problems.append((("drafters", name, "train", "init_from"), message, shown, expected))
    return config.model_copy(update={"drafters": {**config.drafters, **found}}), problems


def _places(given: str, base: Path, store: Path) -> Iterator[Path]:
    directory = (base / Path(given).expanduser()).resolve()
    if directory.is_dir():
        yield directory
        return
    key = given.removeprefix("drafter/")
    if key and "/" not in key:
        drafters = (store / "drafter").absolute()
        yield from sorted(p for p in drafters.glob(f"{key}*") if p.is_dir()) if key.isalnum() else ()
