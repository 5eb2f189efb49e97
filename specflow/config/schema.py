"""JSON schema of configurations, for editors, and the check of files by kind."""

from __future__ import annotations

from typing import Any

from specflow.config.errors import InputErrors, InputProblem, Location, listing, nearest
from specflow.config.fields import models_in
from specflow.config.load_result import LoadResult
from specflow.config.root import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"
RECORDS = {"load-result": LoadResult}
"""Files that stages and commands write for other programs, by the name that ``specflow schema`` knows."""


def config_schema(section: str | None = None) -> dict[str, Any]:
    """The schema of the whole configuration, of one section or of a record that is written.

    Raises ``InputErrors`` for an unknown name.
    """
    sections = {name: models_in(field.annotation) for name, field in Config.model_fields.items()}
    sections = {name: models for name, models in sections.items() if models}
    if section is None:
        return {"$schema": DIALECT, **_tidy(Config.model_json_schema())}
    if section in RECORDS:
        return {"$schema": DIALECT, **RECORDS[section].model_json_schema()}
    if section not in sections:
        problem = InputProblem(
            location=Location(source="specflow schema"),
            path="",
            message="no such section",
            found=section,
            expected="one of " + listing([*sections, *RECORDS, "flow"]),
            hint=nearest(section, [*sections, *RECORDS, "flow"]),
        )
        raise InputErrors([problem])
    schemas = [_tidy(model.model_json_schema()) for model in sections[section]]
    return {"$schema": DIALECT, **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})}


def _tidy(schema: Any) -> Any:
    """Without our own marks, which editors do not know."""
    if isinstance(schema, dict):
        return {name: _tidy(value) for name, value in schema.items() if name not in ("in_key", "name_in_key")}
    return [_tidy(value) for value in schema] if isinstance(schema, list) else schema
