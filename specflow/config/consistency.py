"""What one section requires of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from specflow.config.document import KeyPath
from specflow.config.regenerate import RegenerateParams
from specflow.config.root import Config
from specflow.config.target_facts import target_facts

Inconsistency = tuple[KeyPath, str, Any, str]
"""Key path, message, value found, what was expected."""


def inconsistencies(config: Config) -> Iterator[Inconsistency]:
    """Every contradiction between sections of a configuration whose sections are valid."""
    captured = set(config.capture.layer_ids)
    for name, drafter in config.drafters.items():
        missing = sorted(set(drafter.layer_ids or ()) - captured)
        if missing:
            yield (
                ("drafters", name, "layer_ids"),
                "layers that are not captured",
                missing,
                f"layers among capture.layer_ids: {', '.join(map(str, sorted(captured)))}",
            )
    yield from _trees(config)
    yield from _schedulers(config)
    yield from _beyond_the_target(config)
    yield from _engine_of_answers(config.regenerate)
    train = {source.rows_of: index for index, source in enumerate(config.regenerate.train)}
    for index, source in enumerate(config.regenerate.heldout):
        if source.rows_of in train:
            key = "path" if source.path is not None else "dataset"
            yield (
                ("regenerate", "heldout", index, key),
                "held-out prompts are also trained on",
                source.place,
                f"another source than regenerate.train.{train[source.rows_of]}",
            )


def _trees(config: Config) -> Iterator[Inconsistency]:
    """Trees of drafters that are not there, or whose method proposes chains only."""
    proposing = [name for name, drafter in config.drafters.items() if drafter.proposes_trees]
    served = [name for name in proposing if config.drafters[name].serves_trees]
    sections = (
        ("export", config.export, served),
        ("verify", config.verify, proposing),
        ("bench", config.bench, proposing),
    )
    for name, section, able in sections:
        asked = section.tree_drafters
        unknown = [drafter for drafter in asked or () if drafter not in config.drafters]
        if unknown:
            expected = "names among drafters: " + ", ".join(config.drafters)
            yield (name, "tree_drafters"), "no such drafter", unknown, expected
        if section.tree is None:
            continue
        named = config.drafters if asked is None else [drafter for drafter in asked if drafter in config.drafters]
        unable = [f"{drafter} ({config.drafters[drafter].method})" for drafter in named if drafter not in able]
        if unable:
            expected = f"only {', '.join(able)} in {name}.tree_drafters" if able else f"no {name}.tree: chains"
            yield (
                (name, "tree" if asked is None else "tree_drafters"),
                "drafters that an engine serves with chains only"
                if name == "export"
                else "drafters whose method proposes no trees",
                ", ".join(unable),
                expected,
            )


def _schedulers(config: Config) -> Iterator[Inconsistency]:
    """Schedulers of drafters that are not there, or that have no confidence to go by."""
    asked: list[tuple[KeyPath, Iterable[str]]] = [(("compare", "schedulers"), config.compare.schedulers)]
    for name, section in (("verify", config.verify), ("bench", config.bench)):
        if section.scheduler is not None and section.scheduler_drafters is None:
            asked.append(((name, "scheduler"), config.drafters))
        elif section.scheduler_drafters is not None:
            asked.append(((name, "scheduler_drafters"), section.scheduler_drafters))
    for place, names in asked:
        unknown = [drafter for drafter in names if drafter not in config.drafters]
        if unknown:
            yield place, "no such drafter", ", ".join(unknown), "names among drafters: " + ", ".join(config.drafters)
        known = {name: config.drafters[name] for name in names if name in config.drafters}
        unable = [f"{name} ({own.method})" for name, own in known.items() if own.gives_confidence() is False]
        if unable:
            expected = "drafters whose proposals come with a confidence: name those"
            yield place, "a scheduler for drafters without confidence", ", ".join(unable), expected


def _engine_of_answers(section: RegenerateParams) -> Iterator[Inconsistency]:
    """A server needs an address; greedy does not sample."""
    for name, neutral in (("top_p", 1.0), ("top_k", None)):
        value = getattr(section, name)
        if section.temperature == 0 and value != neutral:
            yield ("regenerate", name), "nothing is sampled at temperature 0", value, "regenerate.temperature above 0"
    if section.engine == "openai" and section.server.url is None:
        yield ("regenerate", "server", "url"), "no server", None, "its address, as http://127.0.0.1:30000/v1"


def _beyond_the_target(config: Config) -> Iterator[Inconsistency]:
    """What asks for more layers or positions than the target has, where its files are here to tell."""
    facts = target_facts(config.target.source)
    if facts.layers is not None:
        missing = [k for k in config.capture.layer_ids if k >= facts.layers - 1]
        if missing:
            yield (
                ("capture", "layer_ids"),
                "layers that cannot be captured",
                missing,
                f"ids from 0 to {facts.layers - 2}: the target has {facts.layers} layers ({config.target.source}), and "
                "the last one's output is kept anyway",
            )
    if facts.positions is not None:
        lengths: list[tuple[KeyPath, int, int]] = [
            ((section, "max_new_tokens"), getattr(config, section).max_new_tokens, facts.positions - 1)
            for section in ("regenerate", "verify", "parity", "load", "bench")
        ]
        lengths.append((("tokenize", "max_length"), config.tokenize.max_length, facts.positions))
        for place, found, largest in lengths:
            if found > largest:
                yield place, "longer than the target's context", found, f"at most {largest}"
