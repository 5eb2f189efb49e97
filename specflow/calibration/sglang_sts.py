"""The file of temperatures that SGLang reads (``--speculative-dspark-confidence-sts-path``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class StsTemperatures(BaseModel):
    """One temperature per proposal; they scale confidence logits only, never the sampling temperature."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    temperatures: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    dataset: str = ""
    num_samples: int = 0
    ece_before: tuple[float, ...] = ()
    ece_after: tuple[float, ...] = ()


def write_sts(path: Path, found: StsTemperatures) -> None:
    path.write_text(found.model_dump_json() + "\n", encoding="utf-8")


def read_sts(path: Path, *, num_proposals: int | None = None) -> StsTemperatures:
    """Raises ``ValueError`` on what the server would refuse, and on another number of proposals."""
    try:
        found = StsTemperatures.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"{path}: not a file of temperatures: {reasons}") from error
    if num_proposals is not None and len(found.temperatures) != num_proposals:
        raise ValueError(
            f"{path}: {len(found.temperatures)} temperatures, the drafter makes {num_proposals} proposals: "
            "calibrate it again"
        )
    return found
