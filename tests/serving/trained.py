"""A drafter of any method that accepts something: trained for a moment on the very answers that it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specflow.config.capture import CaptureParams
from specflow.config.export import ExportParams
from specflow.config.methods import method_params
from specflow.data.documents import TokenDocument
from specflow.stages import capture, export, train
from specflow.stages.contract import Artifact
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target

LAYERS = (0, 2)
ANSWER = 24
PROMPTS = 4
"""Held-out ones, each also trained on."""
TRAIN = {
    "steps": 120, "documents_per_step": 4, "anchors_per_document": 8, "learning_rate": 3e-3, "evaluate_every": 60,
    "evaluate_prompts": 2, "checkpoint_every": 1000, "softmax_tokens": 64, "threads": 1,
}  # fmt: skip
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "dflash": {"num_layers": 1, "block_size": 4},
    "dflash2": {"num_layers": 1, "block_size": 4},
    "eagle": {"num_layers": 1, "draft_steps": 3, "noise": 0.01},
    "eagle3": {"num_layers": 1, "draft_steps": 3, "ttt_length": 3},
    "dspark": {"num_layers": 1, "block_size": 4, "head_rank": 16},
}
"""A small drafter of each method; a further method is one more line."""


@dataclass(frozen=True)
class Trained:
    target: Artifact
    tokens: Artifact
    drafter: Artifact
    export: Artifact


def make_trained(root: Path, method: str, *, dtype: Any = "float32", tree: Any = None, **changes: Any) -> Trained:
    """Everything up to the export, under ``root``; ``tree``: it is served with trees; ``changes``: of the section."""
    target = tiny_target(root)
    loaded = Target.load(target.path, precision="fp32", threads=1)
    tokens = tokens_artifact(root / "tokens", _twice(greedy_documents(loaded, shared=2, other=4, answer=ANSWER)))
    captured = FakeContext(root / "capture")
    capture.run(inputs(target, tokens), CaptureParams(layer_ids=LAYERS, precision="fp32", threads=1), captured)
    section = {"method": method, **SECTIONS[method], "train": TRAIN, **changes}
    trained = FakeContext(root / "train")
    params = method_params()[method].model_validate(section)
    train.run(inputs(target, artifact("features", captured.output)), params, trained)
    drafter = replace(artifact("drafter", trained.output), item=method)
    exported = FakeContext(root / "export")
    export.run(inputs(target, drafter), ExportParams(dtype=dtype, tree=tree), exported)
    return Trained(target=target, tokens=tokens, drafter=drafter, export=artifact("export", exported.output))


def _twice(documents: list[TokenDocument]) -> list[TokenDocument]:
    """All to train on, and some of them again as held-out."""
    learned = [replace(document, split="train") for document in documents]
    asked = [replace(d, id=f"{d.id}-asked", split="heldout") for d in documents[-PROMPTS:]]
    return [*learned, *asked]
