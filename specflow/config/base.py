"""The base of every configuration section, and which fields belong to an artifact's key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo
from pydantic_core import PydanticCustomError

NOT_IN_KEY: dict[str, Any] = {"in_key": False}
"""``json_schema_extra`` of a field that cannot change a stage's result (threads, workers, progress)."""

NAME_IN_KEY: dict[str, Any] = {"name_in_key": True}
"""``json_schema_extra`` of a path whose name matters beside its content: rows are named after it, or its suffix says
how to read it."""


class Section(BaseModel):
    """A section of the configuration: unknown keys are errors, numbers are finite, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def wrong(message: str, *, found: object, expected: str, hint: str = "") -> PydanticCustomError:
    """The error that a validator of a section raises; every part of it reaches the user."""
    # pydantic formats the template with the context, so that braces in it would be read as names.
    template = message.replace("{", "(").replace("}", ")")
    return PydanticCustomError("wrong", template, {"found": str(found), "expected": expected, "hint": hint})


def _from_configuration(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base")
    path = path.expanduser()
    if base is None:
        return path
    resolved: Path = (base / path).resolve()
    if not resolved.exists():
        expected = "a file that can be read, or the directory of a dataset"
        raise wrong("no such file", found=resolved, expected=expected, hint=f"relative paths start at {base}")
    return resolved


InputPath = Annotated[Path, AfterValidator(_from_configuration)]
"""A file or directory that must exist. Relative to the configuration file when read from one; absolute afterwards."""


def _no_directory(path: Path, info: ValidationInfo) -> Path:
    if (info.context or {}).get("base") is not None and path.is_dir():
        raise wrong("is a directory, not a file", found=path, expected="a file that can be read")
    return path


InputFile = Annotated[InputPath, AfterValidator(_no_directory)]
"""The same, no directory."""


def increasing(values: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Validator of layer ids: at least 0, unique and increasing."""
    if (values and list(values) != sorted(set(values))) or any(value < 0 for value in values or ()):
        raise wrong(
            "layer ids out of order",
            found=list(values or ()),
            expected="unique ids from 0 up, in increasing order",
            hint=_out_of_order(values or ()),
        )
    return values


def _out_of_order(values: tuple[int, ...]) -> str:
    """Which of them, and what it would be in order."""
    found = [f"{value} is below 0" for value in sorted({v for v in values if v < 0})]
    found += [
        f"{value} stands {values.count(value)} times" for value in sorted({v for v in values if values.count(v) > 1})
    ]
    if list(values) != sorted(values):
        found.append(f"in order: {sorted({v for v in values if v >= 0})}")
    return "; ".join(found)
