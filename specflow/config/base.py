"""The base of every configuration section, and which fields belong to an artifact's key."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

NOT_IN_KEY: dict[str, Any] = {"in_key": False}
"""``json_schema_extra`` of a field that cannot change a stage's result (threads, workers, progress)."""


class Section(BaseModel):
    """A section of the configuration: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
