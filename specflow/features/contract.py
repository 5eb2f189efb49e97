"""The feature contract: what stored features are, so that a reader can tell whether they fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

CONTRACT_FILE = "contract.json"
SCALE_LAYOUT = "bfloat16_per_token_and_layer"


class Difference(NamedTuple):
    """One field in which two contracts disagree."""

    field: str
    ours: Any
    theirs: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureContract:
    """Everything a consumer of features must agree with; travels beside the data.

    Layer ids are 0-based and mean the residual stream after the MLP add of that decoder layer,
    before any norm of the next (``hidden_states[k + 1]`` of transformers).
    """

    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    template_sha256: str
    layer_ids: tuple[int, ...]
    hidden_size: int
    precision: str
    """Arithmetic of the target when the features were computed: ``fp32``, ``bf16`` or ``packed``."""
    layer_convention: str = "output_of_layer"
    last_hidden: str = "post_final_norm"
    dtype: str = "bfloat16"
    """Of stored rows, last_hidden's too: ``bfloat16``, ``float8_e4m3fn`` or ``int8``."""
    scale_layout: str = "none"
    """Of quantised rows: ``bfloat16_per_token_and_layer``; a value is its code times the scale."""
    rows: str = "all"
    """``all``, or ``usable``: none after the last that training can use. Rows are never shifted against the token
    ids: row t is of token t."""
    thinking: str = "template_default"
    """Mode the conversations were rendered in: ``template_default``, ``on``, ``off``, or ``mixed``."""

    def __post_init__(self) -> None:
        ids = self.layer_ids
        # None at all: a drafter that reads nothing but last_hidden.
        if any(k < 0 for k in ids) or list(ids) != sorted(set(ids)):
            raise ValueError(f"feature contract: layer_ids {list(ids)}: expected unique ids from 0 up, increasing")

    @classmethod
    def for_target(
        cls,
        fingerprint: Mapping[str, str],
        *,
        layer_ids: tuple[int, ...],
        hidden_size: int,
        precision: str,
        dtype: str = "bfloat16",
        rows: str = "all",
        thinking: str = "template_default",
    ) -> FeatureContract:
        """``fingerprint`` holds the four ``*_sha256`` values that the target artifact states."""
        hashes = {name: str(fingerprint[name]) for name in FINGERPRINT_FIELDS}
        return cls(
            **hashes,
            layer_ids=layer_ids,
            hidden_size=hidden_size,
            precision=precision,
            dtype=dtype,
            scale_layout="none" if dtype == "bfloat16" else SCALE_LAYOUT,
            rows=rows,
            thinking=thinking,
        )

    @classmethod
    def read(cls, path: Path) -> FeatureContract:
        """Read ``contract.json``; raises ``ValueError`` naming unknown or missing fields."""
        return cls.from_dict(json.loads(path.read_text(encoding="utf-8")), where=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "feature contract") -> FeatureContract:
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise ValueError(
                f"{where}: expected the fields {sorted(known)}; "
                f"missing {sorted(known - set(values))}, unknown {sorted(set(values) - known)}"
            )
        return cls(**{**values, "layer_ids": tuple(values["layer_ids"])})

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layer_ids": list(self.layer_ids)}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def differences(self, other: FeatureContract) -> list[Difference]:
        """Fields in which ``other`` disagrees, each with both values; empty when they are equal."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return [Difference(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]

    @property
    def hash(self) -> str:
        """sha256 over all fields; part of the manifest of a drafter trained on these features."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


FINGERPRINT_FIELDS = ("weights_sha256", "config_sha256", "tokenizer_sha256", "template_sha256")
