"""Where a drafter's files are; nothing here opens them."""

from __future__ import annotations

from pathlib import Path


def drafter_directory(path: Path) -> Path:
    """``path`` itself, or the folder of the drafter where ``path`` is an artifact of one, trained or exported."""
    nested = (path / "drafter", path / "draft")
    return next((folder for folder in nested if folder.is_dir()), path)


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a drafter, one or several."""
    return sorted(drafter_directory(path).glob("*.safetensors"))


def artifact_name(path: Path) -> str:
    """The key of the artifact that a drafter's directory is or is in, else the directory's own name."""
    return next((p.name for p in (path, path.parent) if (p / "artifact.json").exists()), path.name)
