"""A tiny pipeline up to the drafter: a random target, its greedy documents, features, a random drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specflow.config.capture import CaptureParams
from specflow.drafters.dflash.geometry import geometry_like_target
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.loading import Manifest, save_drafter
from specflow.features.contract import FeatureContract
from specflow.stages import capture
from specflow.stages.contract import Artifact
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents, tokens_artifact
from tests.stages.pipeline_helpers import FakeContext, artifact, fingerprint_of, inputs, tiny_target

LAYERS = (0, 2)
BLOCK = 4
MASK_ID = 299
"""Of `<|unused|>` in the tiny target's tokenizer."""


@dataclass(frozen=True)
class Pipeline:
    target: Artifact
    tokens: Artifact
    features: Artifact
    drafter: Artifact


def make_pipeline(root: Path) -> Pipeline:
    target = tiny_target(root)
    loaded = Target.load(target.path, precision="fp32", threads=1)
    tokens = tokens_artifact(root / "tokens", greedy_documents(loaded, answer=10))
    context = FakeContext(root / "capture")
    capture.run(inputs(target, tokens), CaptureParams(layer_ids=LAYERS, precision="fp32", threads=1), context)
    features = artifact("features", context.output)
    contract = FeatureContract.read(features.path / "contract.json")
    drafter = random_drafter(root / "drafter", target, contract=contract)
    return Pipeline(target=target, tokens=tokens, features=features, drafter=drafter)


def random_drafter(root: Path, target: Artifact, *, contract: FeatureContract | None = None, seed: int = 3) -> Artifact:
    """``contract``: of the features it was trained on; none: such as the target would give."""
    import json

    config = json.loads((target.path / "config.json").read_text())
    geometry = geometry_like_target(config, num_layers=2, block_size=BLOCK, layer_ids=LAYERS, mask_token_id=MASK_ID)
    torch.manual_seed(seed)
    network = DFlashNetwork(geometry)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
    manifest = Manifest(
        method="dflash",
        block_size=BLOCK,
        num_proposals=BLOCK - 1,
        layer_ids=LAYERS,
        mask_token="<|unused|>",
        mask_token_id=MASK_ID,
        feature_contract=contract
        or FeatureContract.for_target(
            fingerprint_of(target), layer_ids=LAYERS, hidden_size=int(config["hidden_size"]), precision="fp32"
        ),
        target_fingerprint=fingerprint_of(target),
    )
    save_drafter(root / "drafter", network, manifest)
    return replace(artifact("drafter", root), item="tiny")


def changed(values: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**values, **changes}


def drafter_of(root: Path, target: Artifact, method: str, *, seed: int = 3, **changes: Any) -> Artifact:
    """An untrained drafter of any method, every weight of it random."""
    import json

    from specflow.config.methods import method_params
    from specflow.drafters.registry import Facts, get_method
    from tests.serving.trained import SECTIONS

    config = json.loads((target.path / "config.json").read_text())
    module = get_method(method)
    draft_ids = tuple(i for i in range(int(config["vocab_size"])) if i % 7)
    kind = method_params()[method]
    own_head = {"draft_vocab_size": len(draft_ids)} if "draft_vocab_size" in kind.model_fields else {}
    params = kind.model_validate({"method": method, **SECTIONS[method], **own_head, **changes})
    needs = module.needs(params)
    ids = draft_ids if needs.draft_vocab_size is not None else None
    facts = Facts(config=config, layer_ids=LAYERS, mask_token_id=MASK_ID, draft_ids=ids)
    torch.manual_seed(seed)
    network = module.new_network(params, facts)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = 0.1 * torch.randn_like(parameter)
            parameter.copy_(1.0 + noise if parameter.ndim == 1 else noise)
    layout = module.layout(network)
    manifest = Manifest(
        method=method,
        block_size=layout.block_size,
        num_proposals=layout.num_proposals,
        sample_from_anchor=layout.sample_from_anchor,
        layer_ids=LAYERS,
        mask_token="<|unused|>" if needs.mask_token else None,
        mask_token_id=MASK_ID if needs.mask_token else None,
        feature_contract=FeatureContract.for_target(
            fingerprint_of(target), layer_ids=LAYERS, hidden_size=int(config["hidden_size"]), precision="fp32"
        ),
        target_fingerprint=fingerprint_of(target),
    )
    save_drafter(root / "drafter", network, manifest)
    return replace(artifact("drafter", root), item=method)


def export_of(root: Path, target: Artifact, drafter: Artifact, *others: Artifact, **params: Any) -> Artifact:
    """The exported drafter, at ``root``."""
    from specflow.config.export import ExportParams
    from specflow.stages import export

    context = FakeContext(root / "run")
    export.run(inputs(target, drafter, *others), ExportParams(**params), context)
    context.output.rename(root / "export")
    return artifact("export", root / "export")
