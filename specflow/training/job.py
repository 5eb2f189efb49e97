"""What a training process needs to know, as JSON: the same file serves one process, many, or another launcher."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specflow.config.drafter import DrafterParams
from specflow.config.methods import method_params

JOB_FILE = "job.json"
RESULT_FILE = "result.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Paths are absolute: every process sees them under the same name."""

    name: str
    """Of the drafter."""
    params: dict[str, Any]
    """The drafter's section of the configuration."""
    target: str
    """Directory of the target."""
    features: str
    """Directory of the features artifact."""
    layer_ids: list[int]
    mask_token_id: int | None
    softmax_tokens: list[int] | None
    """Increasing ids; none: the whole vocabulary."""
    draft_ids: list[int] | None
    """Increasing ids of the drafter's own vocabulary, where its method has one."""
    train: list[int]
    heldout: list[int]
    """Documents by their position in the features."""
    autocast: bool
    threads: int
    """CPU threads of all processes of a machine together."""
    scratch: str
    """Directory of checkpoints, curve and result; survives a kill."""

    @property
    def result(self) -> Path:
        return Path(self.scratch) / RESULT_FILE

    def drafter(self) -> DrafterParams:
        """The parameters as the method's own class."""
        return method_params()[self.params["method"]].model_validate_json(json.dumps(self.params))

    def write(self) -> Path:
        """Into ``scratch``, whole or not at all."""
        path = Path(self.scratch) / JOB_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        partial.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        """Raises ``ValueError`` naming keys that are missing or unknown."""
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise ValueError(
                f"{path}: missing keys {sorted(known - set(values))}, unknown keys {sorted(set(values) - known)}; "
                "write the job again with the train stage of this version"
            )
        return cls(**values)
