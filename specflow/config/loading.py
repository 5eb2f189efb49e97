"""A configuration file and values from the command line, as a checked ``Config``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specflow.config import resources
from specflow.config.consistency import inconsistencies
from specflow.config.document import Document, Dumper, KeyPath, dotted, read_document
from specflow.config.errors import InputErrors, InputProblem
from specflow.config.init_from import with_found_drafters
from specflow.config.overrides import Override, apply_overrides
from specflow.config.root import Config
from specflow.config.validation import shown, validate


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where each of its keys was written."""

    config: Config
    path: Path
    document: Document

    def problem(
        self, path: KeyPath, message: str, *, found: str = "", expected: str = "", hint: str = ""
    ) -> InputProblem:
        """A problem found later (by a stage's check) at the line of the key ``path``."""
        return InputProblem(
            location=self.document.value_location(path),
            path=dotted(path),
            message=message,
            found=found,
            expected=expected,
            hint=hint,
        )


def load_config(name_or_path: str | Path, overrides: Sequence[Override] = ()) -> Loaded:
    """Read, override and check a configuration; raises ``InputErrors`` with everything that is wrong.

    Paths in the file are relative to the file; ``store`` is relative to the current directory.
    """
    path = resources.find("configs", name_or_path)
    document = read_document(path)
    problems: list[InputProblem] = []
    try:
        apply_overrides(document, overrides)
    except InputErrors as errors:
        problems.extend(errors.problems)
    try:
        config = validate(Config, document, context={"base": path.resolve().parent})
    except InputErrors as errors:
        raise InputErrors([*problems, *errors.problems]) from errors
    config, not_found = with_found_drafters(config, path.resolve().parent)
    loaded = Loaded(config, path, document)
    problems += [
        loaded.problem(place, message, found=shown(found), expected=expected)
        for place, message, found, expected in [*inconsistencies(config), *not_found]
    ]
    if problems:
        raise InputErrors(problems)
    return loaded


def dump_config(config: Config) -> str:
    """The whole configuration as YAML, defaults included; loads back equal."""
    return dump_yaml(config.model_dump(mode="json"))


def dump_yaml(data: Any) -> str:
    """Plain data as YAML with keys in their order."""
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
