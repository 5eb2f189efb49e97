"""Adapters by the name of their form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, get_args

from specflow.config.inputs import Form, PromptSource
from specflow.data.tools import Malformed


class Adapter(Protocol):
    """From one form of a row to messages; foreign content stays as it is and is judged later."""

    def recognises(self, row: Mapping[str, Any], source: PromptSource) -> bool:
        """Whether the row has the keys of this form."""
        ...

    def messages(self, row: Mapping[str, Any], source: PromptSource) -> Any:
        """The row's messages; raises :class:`Malformed` where the row is not of this form."""
        ...


_ADAPTERS: dict[str, Adapter] = {}

Class = TypeVar("Class", bound=Callable[[], Adapter])


def registered(name: str) -> Callable[[Class], Class]:
    """Class decorator: makes the class the adapter of the form ``name``."""

    def register(made: Class) -> Class:
        if name in _ADAPTERS:
            raise ValueError(f"two adapters for the form {name!r}")
        _ADAPTERS[name] = made()
        return made

    return register


def form_names() -> list[str]:
    """Every form, in the order in which they are tried: that of ``Form``, then others as they were registered."""
    declared = get_args(Form)
    return sorted(_ADAPTERS, key=lambda name: declared.index(name) if name in declared else len(declared))


def adapter(name: str) -> Adapter:
    """Raises ``ValueError`` naming the known forms."""
    if name not in _ADAPTERS:
        raise ValueError(f"unknown form {name!r}; known: {', '.join(_ADAPTERS)}")
    return _ADAPTERS[name]


def detect(rows: Iterable[Any], source: PromptSource) -> str | None:
    """The form of the first row that has one, or none."""
    for row in rows:
        if isinstance(row, dict):
            for name in form_names():
                if _ADAPTERS[name].recognises(row, source):
                    return name
    return None


def found_key(row: Mapping[str, Any], declared: str | None, usual: tuple[str, ...]) -> str | None:
    """The key that holds a value: the declared one, or the first of the usual ones."""
    return next((key for key in ((declared,) if declared else usual) if row.get(key) is not None), None)


def turns_of(row: Mapping[str, Any], source: PromptSource, usual: tuple[str, ...]) -> Any:
    """The row's turns, under the declared key or the first of the usual ones that it has; raises :class:`Malformed`."""
    key = found_key(row, source.fields.messages, usual)
    if key is None:
        expected = source.fields.messages or usual[0]
        raise Malformed("no_messages", f"expected the key {expected}, found {sorted(map(str, row))}")
    return row[key]


def with_system(row: Mapping[str, Any], source: PromptSource, turns: list[Any]) -> list[Any]:
    """The turns behind the row's own system prompt, where it has one that is not among them."""
    key = found_key(row, source.fields.system, ("system", "system_prompt"))
    first = turns[0] if turns else None
    if key is None or not str(row[key]).strip() or (isinstance(first, dict) and first.get("role") == "system"):
        return turns
    return [{"role": "system", "content": row[key]}, *turns]
