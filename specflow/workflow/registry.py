"""The stages that flows can name, and where their modules are."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from specflow.stages.contract import StageModule
from specflow.workflow.code_version import CodeVersions, code_versions

STAGE_NAMES = (
    "target",
    "regenerate",
    "tokenize",
    "vocab",
    "capture",
    "pool",
    "join",
    "train",
    "calibrate",
    "profile",
    "export",
    "verify",
    "parity",
    "load",
    "bench",
    "incumbent",
    "compare",
    "gate",
    "report",
)


@dataclass(frozen=True, slots=True)
class Registry:
    """Stage names and the modules that implement them."""

    modules: Mapping[str, str]
    versions: CodeVersions = field(default_factory=code_versions)
    preloaded: tuple[str, ...] = ()
    """Modules, none of ours, that most stages import: a run of several stages imports them once."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.modules)

    def load(self, name: str) -> StageModule:
        """Import a stage module; ``KeyError`` for an unknown name."""
        return cast(StageModule, importlib.import_module(self.modules[name]))

    def code_version(self, name: str) -> str:
        return self.versions.version(self.modules[name])


PRELOADED = (
    "torch",
    "numpy",
    "safetensors.torch",
    "transformers.modeling_utils",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "zarr",
)

STAGES = Registry({name: f"specflow.stages.{name}" for name in STAGE_NAMES}, preloaded=PRELOADED)
