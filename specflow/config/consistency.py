"""What one section requires of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specflow.config.document import KeyPath
from specflow.config.root import Config

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
    train = {source.path: index for index, source in enumerate(config.regenerate.train)}
    for index, source in enumerate(config.regenerate.heldout):
        if source.path in train:
            yield (
                ("regenerate", "heldout", index, "path"),
                "held-out prompts are also trained on",
                str(source.path),
                f"a file other than regenerate.train.{train[source.path]}.path",
            )
