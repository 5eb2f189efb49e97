"""The flags of stage commands, made from the configuration's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from specflow.config.document import KeyPath
from specflow.config.drafter import TrainParams
from specflow.config.fields import Leaf, leaves, models_in
from specflow.config.overrides import Override, parse_value
from specflow.config.root import Config

EVERY = "*"
DRAFTERS = "drafters"
ENABLED = "enabled"
"""The switch of a section, whose flag has the section's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of a stage command and the key of the configuration that it sets."""

    name: str
    """With dashes, without the leading ``--``."""
    leaf: Leaf
    section: tuple[str, ...]

    @property
    def parameter(self) -> str:
        return self.name.replace("-", "_")

    @property
    def path(self) -> KeyPath:
        return (*self.section, *self.leaf.path)

    @property
    def help(self) -> str:
        """Description, default and YAML key."""
        default = "" if self.leaf.required else f"default {_text(self.leaf.default)}; "
        place = ".".join(self.section + self.leaf.path)
        return f"{self.leaf.description} ({default}{place})".strip()

    def override(self, value: str | bool, *, item: str | None = None) -> Override:
        """The override that the flag stands for, for one drafter or for every one; raises ``InputErrors``."""
        path = tuple(item if part == EVERY and item else part for part in self.path)
        existing = 2 if self.section[:1] == (DRAFTERS,) else 0
        if isinstance(value, bool):
            flag = f"--{self.name}" if value else f"--no-{self.name}"
            return Override(path=path, value=value, flag=flag, existing=existing)
        flag = f"--{self.name} {value}"
        return Override(path=path, value=self._value(value, flag), flag=flag, existing=existing)

    def _value(self, text: str, flag: str) -> Any:
        types = self.leaf.type_name.split("|")
        if "none" in types and text.lower() in ("none", "null"):
            return None
        if self.leaf.choices or {"text", "path"} & set(types):
            return text
        if "," in self.leaf.type_name and not text.startswith("["):
            text = f"[{text}]"
        return parse_value(text, flag=flag, path=self.path)


def section_of(stage: str) -> tuple[str, ...]:
    """Where a stage's parameters are: the section of its name, or every drafter."""
    return (stage,) if stage in Config.model_fields else (DRAFTERS, EVERY)


def section_models(stage: str) -> list[type[BaseModel]]:
    """The models of a stage's parameters: more than one where the drafter's method decides."""
    return models_in(Config.model_fields[section_of(stage)[0]].annotation)


def flags_of(stage: str) -> tuple[Flag, ...]:
    """A flag for every field of a stage's section that holds a value."""
    return flags_of_models(section_models(stage), section=section_of(stage))


def flags_of_models(models: Sequence[type[BaseModel]], *, section: tuple[str, ...] = ()) -> tuple[Flag, ...]:
    """The same for any models of one section; without ``section``, paths are those of the model itself."""
    by_path: dict[tuple[str, ...], Leaf] = {}
    for model in models:
        for leaf in leaves(model):
            by_path[leaf.path] = _either(by_path[leaf.path], leaf) if leaf.path in by_path else leaf
    names = {path: path[:-1] if path[-1] == ENABLED else path for path in by_path}
    short: Mapping[str, int] = _counts([name[-1] for name in names.values()])
    return tuple(
        Flag(name=_dashed(name[-1:] if short[name[-1]] == 1 else name), leaf=by_path[path], section=section)
        for path, name in names.items()
    )


def _either(first: Leaf, second: Leaf) -> Leaf:
    """One flag for the same field of two methods: what either allows."""
    choices = (*first.choices, *(c for c in second.choices if c not in first.choices))
    return replace(first, choices=choices, type_name="|".join(choices)) if choices else first


def summary_of(stage: str) -> str:
    """One line on what the stage does."""
    model = TrainParams if section_of(stage)[0] == DRAFTERS else section_models(stage)[0]
    documentation = model.__doc__ or ""
    return documentation.strip().partition("\n")[0]


def _counts(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in names}


def _dashed(path: tuple[str, ...]) -> str:
    return "-".join(path).replace("_", "-")


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)
