"""The parameters of every drafter method, found beside its code: ``Params`` of ``specflow/drafters/<name>/params.py``.

They are asked for by name, so that a method is one folder and this package imports nothing of it. ``params.py`` is
read with every configuration: it imports pydantic and ``specflow.config`` only.
"""

from __future__ import annotations

import functools
import importlib
import operator
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from specflow.config.drafter import DrafterParams

PACKAGE = "specflow.drafters"


def method_folders() -> list[str]:
    """Folders of methods, in alphabetical order."""
    package = importlib.import_module(PACKAGE)
    places = [Path(place) for place in package.__path__]
    names = {found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg}
    return sorted(name for name in names if any((place / name / "params.py").exists() for place in places))


@functools.cache
def method_params() -> dict[str, type[DrafterParams]]:
    """The parameters' model of every method by name."""
    modules = {name: importlib.import_module(f"specflow.drafters.{name}.params") for name in method_folders()}
    return {name: module.Params for name, module in modules.items()}


def _one_of(models: list[Any]) -> Any:
    """The model whose ``method`` is the section's; pydantic allows no discriminator where there is no choice."""
    if len(models) == 1:
        return models[0]
    return Annotated[functools.reduce(operator.or_, models), Field(discriminator="method")]


if TYPE_CHECKING:
    AnyDrafter = DrafterParams
else:
    AnyDrafter = _one_of(list(method_params().values()))
