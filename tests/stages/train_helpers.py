"""A tiny target with the features of its own greedy answers, and the train stage run on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specflow.config.drafter import DrafterParams
from specflow.features.contract import FeatureContract
from specflow.features.document import Document
from specflow.features.store import FeatureWriter
from specflow.stages import train as stage
from specflow.stages.contract import Artifact, Inputs
from specflow.targets.tiny import make_tiny_target

FINGERPRINT = {f"{n}_sha256": n for n in ("weights", "config", "tokenizer", "template")}


@dataclass
class Bar:
    on_advance: Callable[[float], None]

    def advance(self, amount: float = 1) -> None:
        self.on_advance(amount)

    def describe(self, text: str) -> None: ...
    def figures(self, values: Mapping[str, float]) -> None: ...


@dataclass
class FakeContext:
    output: Path
    scratch: Path
    item: str | None = "tiny"
    messages: list[str] = field(default_factory=list)
    on_advance: Callable[[float], None] = lambda amount: None

    def log(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def progress(self, description: str, *, total: float, unit: str = "rows") -> Iterator[Bar]:
        yield Bar(self.on_advance)


def write_features(
    path: Path,
    target: Path,
    *,
    fingerprint: dict[str, str],
    shift: int = 0,
    sampled: Collection[int] = (),
    silent: Collection[int] = (),
) -> Path:
    """Greedy answers of the target with their features; ``shift`` moves ``last_hidden`` by rows.

    Documents in ``sampled`` have other answers, and say so; those in ``silent`` have no supervised token.
    """
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    made = []
    for index in range(8):
        ids = torch.randint(0, 200, (1, 6), generator=torch.Generator().manual_seed(index))
        with torch.no_grad():
            for _ in range(18):
                ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
            if index in sampled:
                ids[:, 6:] = (ids[:, 6:] + 1) % 200
            states = model.model(ids, output_hidden_states=True)
        supervised = torch.zeros(24, dtype=torch.bool)
        supervised[6:] = index not in silent
        features = torch.stack([states.hidden_states[k + 1][0] for k in (0, 2)], dim=1)
        made.append(
            Document(
                index=index,
                split="heldout" if index >= 6 else "train",
                kind="service" if index % 2 else "broad",
                id=f"d{index}",
                greedy=index not in sampled,
                token_ids_T=ids[0],
                supervised_T=supervised,
                features_TKH=features.bfloat16(),
                last_hidden_TH=torch.roll(states.last_hidden_state[0], shift, dims=0).bfloat16(),
            )
        )
    contract = FeatureContract.for_target(fingerprint, layer_ids=(0, 2), hidden_size=64, precision="fp32")
    writer = FeatureWriter(path, contract)
    writer.write(0, made)
    writer.finish(1)
    return path


def make_target(path: Path) -> Path:
    """The target artifact's payload."""
    made = make_tiny_target(path, 1)
    (made / "fingerprint.json").write_text(json.dumps(FINGERPRINT))
    return made


def run(
    tmp_path: Path,
    target: Path,
    features: Path,
    params: DrafterParams,
    on_advance: Callable[[float], None] = lambda amount: None,
) -> tuple[Any, FakeContext]:
    """The stage with directories under ``tmp_path``; its scratch directory stays for the next run."""
    context = FakeContext(tmp_path / "output", tmp_path / "scratch", on_advance=on_advance)
    for path in (context.output, context.scratch):
        path.mkdir(parents=True, exist_ok=True)
    artifacts = (
        Artifact(kind="target", key="t" * 64, path=target),
        Artifact(kind="features", key="f" * 64, path=features),
    )
    return stage.run(Inputs(artifacts), params, context), context
