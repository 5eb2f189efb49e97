"""Where flows and configurations are found: by path, in the checkout, or in the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from specflow.config.errors import InputErrors, InputProblem, Location, listing, nearest

Folder = Literal["flows", "configs"]


def directories(folder: Folder) -> list[Path]:
    """Where names are looked up, in order: the current directory, this checkout, the package's own data."""
    package = Path(__file__).resolve().parent.parent
    candidates = [Path.cwd() / folder, package.parent / folder, package / "_data" / folder]
    # Beside an installed package there may be anything; a checkout is known by its pyproject.toml.
    if not (package.parent / "pyproject.toml").is_file():
        del candidates[1]
    return [path for path in dict.fromkeys(candidates) if path.is_dir()]


def names(folder: Folder) -> list[str]:
    """The names that ``find`` knows."""
    return sorted({path.stem for directory in directories(folder) for path in directory.glob("*.yaml")})


def find(folder: Folder, name_or_path: str | Path) -> Path:
    """The file for ``quickstart``, ``quickstart.yaml`` or a path; raises ``InputErrors`` with the nearest name."""
    given = Path(name_or_path).expanduser()
    if given.is_file():
        return given
    text = str(name_or_path)
    named = "/" not in text and "\\" not in text
    if named:
        name = text.removesuffix(".yaml").removesuffix(".yml")
        for directory in directories(folder):
            path = directory / f"{name}.yaml"
            if path.is_file():
                return path
    # A path such as configs/quickstart.yaml also works outside a checkout.
    parts = given.parts
    if len(parts) == 2 and parts[0] == folder and not given.is_absolute():
        for directory in directories(folder):
            if (directory / parts[1]).is_file():
                return directory / parts[1]
    known = names(folder)
    what = {"flows": "flow", "configs": "configuration"}[folder]
    problem = InputProblem(
        location=Location(source=text),
        path="",
        message=f"is a directory, not a {what}" if given.is_dir() else f"no such {what} file",
        found=str(given.absolute()),
        expected=f"a path to a YAML file, or one of {listing(known)}" if known else "a path to a YAML file",
        hint=nearest(given.stem, known),
    )
    raise InputErrors([problem])
