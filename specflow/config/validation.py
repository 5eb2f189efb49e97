"""From located YAML data to a model; pydantic's errors become located problems with the nearest valid name."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specflow.config.document import Document, KeyPath, dotted
from specflow.config.errors import InputErrors, InputProblem, listing, nearest
from specflow.config.fields import children_of, places_of

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], document: Document, *, context: dict[str, Any] | None = None) -> Model:
    """``document`` as a ``model``; raises ``InputErrors`` with every problem.

    Types are strict (``"12"`` is not a number, ``true`` is not 1), as JSON means them, so that lists become
    tuples and text becomes paths.
    """
    try:
        return model.model_validate_json(json.dumps(document.data), strict=True, context=context)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        places = [details["loc"] for details in errors]
        problems = [
            _problem(model, document, details) for details in errors if not _follows_from_another(details, places)
        ]
        problems.sort(key=lambda p: (p.location.line or 0, p.location.column or 0))
        raise InputErrors(list(dict.fromkeys(problems))) from error


def _follows_from_another(details: ErrorDetails, places: list[tuple[int | str, ...]]) -> bool:
    """A list is "too short" also because its wrong entries were left out; those are reported themselves."""
    loc = details["loc"]
    return details["type"] == "too_short" and any(place != loc and place[: len(loc)] == loc for place in places)


def _problem(model: type[BaseModel], document: Document, details: ErrorDetails) -> InputProblem:
    path = written_path(document.data, details["loc"])
    kind, context = details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(model, document, path)
    if details["loc"] and details["loc"][-1] == "[key]":
        message = details["msg"].removeprefix("String should ")
        return _at_key(document, path, "not a valid name", str(path[-1]), f"a name that should {message}")
    if kind == "missing" and isinstance(details["loc"][-1], int):
        count = f"at least {details['loc'][-1] + 1} entries"
        return _at_key(document, path, "list too short", shown(_value(document.data, path)), count)
    if kind in ("missing", "union_tag_not_found"):
        return _missing_key(model, document, path, str(context.get("discriminator", "")).strip("'"))
    found = shown(_value(document.data, path))
    expected = _expected(details)
    message, hint = "wrong value", ""
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        choices = str(context.get("expected") or context.get("expected_tags", "")).replace(" or ", ", ")
        names = [name.strip(" '\"") for name in choices.split(",")]
        expected, hint = "one of " + ", ".join(names), nearest(str(_value(document.data, path)), names)
        if kind == "union_tag_invalid":
            tag = str(context["discriminator"]).strip("'")
            path = (*path, tag)
            found, hint = shown(context["tag"]), nearest(str(context["tag"]), names)
    elif kind.endswith("_type") or kind.endswith("_parsing") or kind in ("int_from_float", "is_instance_of"):
        message = "wrong type"
        found = f"{found} ({_kind_of(_value(document.data, path))})"
    elif kind in ("value_error", "assertion_error"):
        message, expected = expected, ""
    elif "expected" in context and "found" in context:
        # Our own PydanticCustomError: the message says what is wrong.
        message, expected, found = details["msg"], str(context["expected"]), str(context["found"])
        hint = str(context.get("hint", ""))
    return InputProblem(
        location=document.value_location(path),
        path=dotted(path),
        message=message,
        found=found,
        expected=expected,
        hint=hint,
    )


PLAIN_WORDS = {
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "an object": "a mapping",
    "a valid dictionary": "a mapping",
}


def _expected(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    if details["type"] == "too_short":
        return f"at least {context['min_length']} {'entry' if context['min_length'] == 1 else 'entries'}"
    if details["type"] == "too_long":
        return f"at most {context['max_length']} entries"
    text = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return PLAIN_WORDS.get(text, text)


def _at_key(document: Document, path: KeyPath, message: str, found: str, expected: str) -> InputProblem:
    location = document.key_location(path)
    return InputProblem(location=location, path=dotted(path), message=message, found=found, expected=expected)


def _unknown_key(model: type[BaseModel], document: Document, path: KeyPath) -> InputProblem:
    name = str(path[-1])
    valid = children_of(model, path[:-1], document.data)
    present = _value(document.data, path[:-1])
    unused = [key for key in valid if not isinstance(present, dict) or key not in present]
    hint = nearest(name, unused) or nearest(name, valid)
    elsewhere = places_of(model, name)
    if not hint and elsewhere:
        hint = f"`{name}` belongs to " + ", ".join(place.rpartition(".")[0] or "the top level" for place in elsewhere)
    return InputProblem(
        location=document.key_location(path),
        path=dotted(path),
        message="unknown key",
        found=name,
        expected="one of " + listing(valid) if valid else "",
        hint=hint,
    )


def _missing_key(model: type[BaseModel], document: Document, path: KeyPath, discriminator: str) -> InputProblem:
    if discriminator:
        path = (*path, discriminator)
    field = children_of(model, path[:-1], document.data).get(str(path[-1]))
    described = field.description if field and field.description else ""
    return InputProblem(
        location=document.key_location(path[:-1]),
        path=dotted(path),
        message="missing key",
        found="nothing",
        expected=f"`{path[-1]}`" + (f": {described}" if described else ""),
    )


def written_path(data: Any, loc: tuple[int | str, ...]) -> KeyPath:
    """A pydantic location without the parts that are not in the file (tags of unions, names of validators)."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if inside:
            path.append(part)
            data = data[part]
        elif index == len(loc) - 1 and isinstance(data, dict) and not str(part).startswith("["):
            path.append(part)
    return tuple(path)


def shown(value: Any) -> str:
    """A value as it is written in a file, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _value(data: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _kind_of(value: Any) -> str:
    names = {bool: "true/false", int: "whole number", float: "number", str: "text", list: "list", dict: "mapping"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)
