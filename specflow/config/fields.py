"""What keys exist: the configuration models walked by key path. Flags, help and hints come from here."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from specflow.config.document import KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A field that holds a value rather than a section."""

    path: tuple[str, ...]
    """Names below the section it was asked for."""
    type_name: str
    choices: tuple[str, ...]
    is_flag: bool
    description: str
    default: Any
    required: bool

    @property
    def name(self) -> str:
        return self.path[-1]


def leaves(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The fields of a section and of the sections in it, except lists and mappings of sections."""
    for name, field in model.model_fields.items():
        annotation = _plain(field.annotation)
        nested = models_in(annotation)
        if not nested:
            choices = literals(annotation)
            yield Leaf(
                path=(*prefix, name),
                type_name="|".join(choices) if choices else type_name(annotation),
                choices=choices,
                is_flag=annotation is bool,
                description=field.description or "",
                default=None if field.is_required() else field.get_default(call_default_factory=True),
                required=field.is_required(),
            )
        elif annotation in nested:
            yield from leaves(annotation, (*prefix, name))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Every section class that an annotation mentions: itself, in a union, a list or a mapping."""
    annotation = _plain(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def children_of(model: type[BaseModel], path: KeyPath, data: Any = None) -> dict[str, FieldInfo]:
    """The keys valid directly under ``path``; empty where any name is valid or the path is unknown.

    ``data`` picks the member of a union by the literal it holds (for example ``method``).
    """
    annotation: Any = model
    for part in path:
        annotation = _step(annotation, part, data)
        data = _get(data, part)
        if annotation is None:
            return {}
    found = [m for m in _members(annotation) if isinstance(m, type) and issubclass(m, BaseModel)]
    return {name: field for m in _matching(found, data) for name, field in m.model_fields.items()}


def places_of(model: type[BaseModel], name: str) -> list[str]:
    """Dotted paths (``*`` for a name of the user's) of the fields called ``name`` anywhere below ``model``."""
    return sorted({place for place in _walk(model, ()) if place.rpartition(".")[2] == name})


def literals(annotation: Any) -> tuple[str, ...]:
    """The values of a ``Literal``, also inside ``| None``."""
    members = _members(annotation)
    return tuple(str(value) for member in members if get_origin(member) is Literal for value in get_args(member))


def type_name(annotation: Any) -> str:
    """How help and errors call a type: ``whole number``, ``list of whole numbers or none``."""
    annotation = _plain(annotation)
    simple = {int: "int", float: "float", bool: "bool", str: "text", type(None): "none", Any: "any"}
    if annotation in simple:
        return simple[annotation]
    origin = get_origin(annotation)
    arguments = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    if origin in (typing.Union, types.UnionType):
        return "|".join(type_name(member) for member in arguments)
    if origin is Literal:
        return "|".join(str(value) for value in arguments)
    if origin in (tuple, list, set, frozenset):
        if Ellipsis not in get_args(annotation) and origin is tuple:
            return ",".join(type_name(argument) for argument in arguments)
        return f"{type_name(arguments[0])},..."
    if origin is dict:
        return "mapping"
    name: str = getattr(annotation, "__name__", str(annotation))
    return {"Path": "path"}.get(name, name)


def _plain(annotation: Any) -> Any:
    """The annotation without ``Annotated``."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _members(annotation: Any) -> list[Any]:
    annotation = _plain(annotation)
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [inner for member in get_args(annotation) for inner in _members(member)]
    return [annotation]


def _matching(models: list[type[BaseModel]], data: Any) -> list[type[BaseModel]]:
    if len(models) < 2 or not isinstance(data, dict):
        return models
    chosen = []
    for model in models:
        tags = {name: literals(field.annotation) for name, field in model.model_fields.items() if field.is_required()}
        if any(data.get(name) in values for name, values in tags.items() if values):
            chosen.append(model)
    return chosen or models


def _step(annotation: Any, part: str | int, data: Any) -> Any:
    members = _members(annotation)
    sections = [m for m in members if isinstance(m, type) and issubclass(m, BaseModel)]
    for model in _matching(sections, data):
        if part in model.model_fields:
            return model.model_fields[str(part)].annotation
    for member in members:
        origin, arguments = get_origin(member), get_args(member)
        if origin is dict and isinstance(part, str):
            return arguments[1]
        if origin in (tuple, list) and isinstance(part, int):
            return (
                arguments[0] if Ellipsis in arguments or origin is list or part >= len(arguments) else arguments[part]
            )
    return None


def _get(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and -len(data) <= part < len(data):
        return data[part]
    return None


def _walk(model: type[BaseModel], prefix: tuple[str, ...]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield ".".join((*prefix, name))
        annotation = _plain(field.annotation)
        origin = get_origin(annotation)
        below = (*prefix, name, "*") if origin in (dict, tuple, list) else (*prefix, name)
        for nested in models_in(annotation):
            yield from _walk(nested, below)
