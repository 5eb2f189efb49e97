"""``train``: features in, a trained drafter out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.drafter import DFlashParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.train_options import bring_state, check_options, leave_state, started_from, warm_start_files

if TYPE_CHECKING:
    from specflow.drafters.dflash.network import DFlashNetwork
    from specflow.drafters.target_weights import TargetWeights
    from specflow.features.contract import FeatureContract
    from specflow.features.reader import FeatureReader
    from specflow.training.data import Documents
    from specflow.training.frozen import FrozenEnds
    from specflow.training.loop import Outcome

NAME = "train"
KIND = "drafter"
INPUTS = {"target": Arity.ONE, "features": Arity.ONE}

SECONDS_PER_ROW = 1.8e-3
"""Of one block row in a step: a target of 135 M parameters, two draft layers, two cores without bf16 units."""


def check(params: DFlashParams) -> Iterable[Problem]:
    """What can be wrong with the section by itself; agreement with captured layers is checked by the configuration."""
    if params.layer_ids is not None and list(params.layer_ids) != sorted(set(params.layer_ids)):
        yield Problem(where="layer_ids", found=str(params.layer_ids), expected="unique, increasing layer ids")
    if params.train.seed < 0:
        yield Problem(where="train.seed", found=str(params.train.seed), expected="a seed of at least 0")
    yield from check_options(params.train)


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    """A drafter learns greedy answers, and the stored hidden states are checked against them."""
    temperature = getattr(sections.get("regenerate"), "temperature", 0)
    if temperature > 0:
        yield Problem(
            where="regenerate.temperature",
            found=str(temperature),
            expected="0",
            hint="drafters are trained and checked on greedy answers",
        )


def files(params: DFlashParams) -> Iterable[Path]:
    """The drafter it starts from, so that the key follows that drafter's content."""
    return warm_start_files(params.train)


def estimate(params: DFlashParams) -> Estimate:
    train = params.train
    rows = train.documents_per_step * train.anchors_per_document * params.block_size
    return Estimate(
        seconds=train.steps * rows * SECONDS_PER_ROW * params.num_layers / 2,
        note="two cores and a target of 135 M parameters; grows with the target's hidden size squared",
    )


def run(inputs: Inputs, params: DFlashParams, context: Context) -> Metrics:
    """Payload: ``drafter/`` (config, weights, manifest) and ``metrics.jsonl``.

    Raises ``StageError`` if the features are not this target's, or do not predict its answers, or training diverges.
    """
    import torch

    from specflow.stages.machine import resolved_threads

    before = torch.get_num_threads()
    torch.set_num_threads(resolved_threads(context.scratch, params.train.threads))
    try:
        return _run(inputs, params, context)
    finally:
        torch.set_num_threads(before)


def _run(inputs: Inputs, params: DFlashParams, context: Context) -> Metrics:
    from specflow.drafters.loading import Manifest, save_drafter
    from specflow.drafters.target_weights import TargetWeights
    from specflow.features.reader import FeatureReader
    from specflow.training.data import Coverage, Documents
    from specflow.training.frozen import FrozenEnds, choose_softmax_tokens

    target, features = inputs.one("target"), inputs.one("features")
    fingerprint = json.loads(target.file("fingerprint.json").read_text())
    weights, reader = TargetWeights(target.path), FeatureReader(features.path)
    _check_contract(reader.contract, fingerprint, weights, target.key, features.key)
    layer_ids = params.layer_ids or reader.contract.layer_ids
    columns = _columns(layer_ids, reader.contract)
    documents = Documents(reader, columns=columns, last_hidden=params.train.soft_targets > 0)
    train = reader.indices("train")
    coverage = Coverage.of(documents, train)
    if not coverage.legal_anchors:
        raise StageError(
            f"expected training documents with at least two supervised tokens in a row, found none among "
            f"{coverage.documents} documents ({coverage.supervised} supervised tokens) of features "
            f"{features.key[:12]}; look at the tokens artifact's masks"
        )
    vocab_size = int(weights.config["vocab_size"])
    softmax_tokens = choose_softmax_tokens(documents, train, vocab_size=vocab_size, wanted=params.train.softmax_tokens)
    frozen = FrozenEnds.of_target(weights, softmax_tokens=softmax_tokens)
    context.log(
        f"{coverage.documents} documents, {coverage.legal_anchors} legal anchors, softmax over {len(softmax_tokens)}"
    )
    share = _probe(reader, frozen, context)
    mask_token, mask_id = _mask_token(target.path, params, vocab_size)
    _check_unused(mask_token, mask_id, documents, train)
    network, start = _network(params, weights, documents, train, layer_ids=layer_ids, mask_id=mask_id)
    context.log(start)
    warm = started_from(network, params, context)
    bring_state(params.train, context.scratch / "training")
    outcome = _train(network, frozen, documents, train, reader, params, context)
    manifest = Manifest(
        method=params.method,
        block_size=params.block_size,
        num_proposals=params.block_size - 1,
        layer_ids=layer_ids,
        mask_token=mask_token,
        mask_token_id=mask_id,
        feature_contract=reader.contract.hash,
        target_fingerprint=fingerprint,
        lineage={
            "target": target.key,
            "features": features.key,
            "start": start,
            **warm,
            "step": outcome.state.best_step,
        },
    )
    save_drafter(context.output / "drafter", network, manifest)
    shutil.copyfile(outcome.curve, context.output / "metrics.jsonl")
    leave_state(params.train, outcome.curve.parent, context.output)
    logs = outcome.curve.with_name("logs")
    if logs.is_dir():
        shutil.copytree(logs, context.output / "logs")
    return {
        **_metrics(outcome),
        "alignment": share,
        "softmax_tokens": len(softmax_tokens),
        "parameters": sum(p.numel() for p in network.parameters()),
        "train_documents": coverage.documents,
        "train_supervised_tokens": coverage.supervised,
        "anchors_per_supervised_token": outcome.state.blocks / max(1, coverage.supervised),
        "threads": _threads(),
    }


def _check_contract(
    contract: FeatureContract, fingerprint: dict[str, str], weights: TargetWeights, target: str, features: str
) -> None:
    from specflow.features.contract import FeatureContract

    expected = FeatureContract.for_target(
        fingerprint,
        layer_ids=contract.layer_ids,
        hidden_size=int(weights.config["hidden_size"]),
        precision=contract.precision,
    )
    different = expected.differences(contract)
    if different:
        lines = "; ".join(f"{d.field}: target {d.ours}, features {d.theirs}" for d in different)
        raise StageError(
            f"features {features[:12]} were not captured from target {target[:12]} ({weights.path}): {lines}; "
            "capture the features again from this target"
        )


def _columns(layer_ids: tuple[int, ...], contract: FeatureContract) -> list[int]:
    missing = sorted(set(layer_ids) - set(contract.layer_ids))
    if missing:
        raise StageError(
            f"expected layer_ids among the captured layers {list(contract.layer_ids)}, found {missing}; "
            "add them to capture.layer_ids or leave layer_ids out"
        )
    return [contract.layer_ids.index(i) for i in layer_ids]


def _probe(reader: FeatureReader, frozen: FrozenEnds, context: Context) -> float:
    from specflow.features.agreement import LEAST_AGREEMENT
    from specflow.training.probe import alignment

    greedy = reader.indices("train", greedy=True)
    if not greedy:
        raise StageError(
            "expected training documents whose answers are the target's own greedy ones, found none; regenerate them "
            "with regenerate.temperature 0"
        )
    agreeing, judged = alignment(reader, greedy, frozen.head)
    share = agreeing / max(1, judged)
    context.log(f"stored hidden states predict {agreeing} of {judged} supervised tokens")
    if share < LEAST_AGREEMENT:
        raise StageError(
            f"expected the stored last_hidden to predict at least {LEAST_AGREEMENT:.0%} of the next supervised tokens, "
            f"found {share:.1%} of {judged}: the features are shifted, of another layer or before the final norm, or "
            "the answers are not this target's own greedy ones (regenerate.temperature must be 0)"
        )
    return share


def _mask_token(path: Path, params: DFlashParams, vocab_size: int) -> tuple[str, int]:
    from transformers import AutoTokenizer

    from specflow.drafters.mask_token import NoMaskToken, choose_mask_token

    config = path / "generation_config.json"
    ends = (json.loads(config.read_text()) if config.exists() else {}).get("eos_token_id") or []
    tokenizer = AutoTokenizer.from_pretrained(path)
    try:
        return choose_mask_token(
            tokenizer,
            vocab_size=vocab_size,
            wanted=params.mask_token,
            end_ids=ends if isinstance(ends, list) else [ends],
        )
    except NoMaskToken as error:
        raise StageError(str(error)) from error


def _check_unused(mask_token: str, mask_id: int, documents: Documents, train: list[int]) -> None:
    found = sum(int((documents.get(p).token_ids_T == mask_id).sum()) for p in train)
    if found:
        raise StageError(
            f"expected a mask token that no text contains, found {mask_token!r} (id {mask_id}) {found} times in the "
            "training documents; set mask_token to another unused token"
        )


def _network(
    params: DFlashParams,
    weights: TargetWeights,
    documents: Documents,
    train: list[int],
    *,
    layer_ids: tuple[int, ...],
    mask_id: int,
) -> tuple[DFlashNetwork, str]:
    import torch

    from specflow.drafters.dflash.geometry import geometry_like_target
    from specflow.drafters.dflash.initialise import initialise_from_target, initialise_random
    from specflow.drafters.dflash.network import DFlashNetwork

    geometry = geometry_like_target(
        weights.config,
        num_layers=params.num_layers,
        block_size=params.block_size,
        layer_ids=layer_ids,
        mask_token_id=mask_id,
    )
    network, seed = DFlashNetwork(geometry), params.train.seed
    if params.train.initialise == "random":
        initialise_random(network, seed=seed)
        return network, "random weights, as asked"
    sample = torch.cat([documents.get(p).features_TKH for p in train[:8]])
    reason = initialise_from_target(network, weights, sample, seed=seed)
    return network, f"random weights: {reason}" if reason else f"the target's last {params.num_layers} layers"


def _train(
    network: DFlashNetwork,
    frozen: FrozenEnds,
    documents: Documents,
    train: list[int],
    reader: FeatureReader,
    params: DFlashParams,
    context: Context,
) -> Outcome:
    from specflow.drafters.dflash.objective import default_decay
    from specflow.stages.machine import remembered
    from specflow.training.loop import Trainer, TrainingDiverged
    from specflow.training.optimizers import WrongGroups
    from specflow.training.probe import has_bf16_units, spread_over_kinds

    try:
        trainer = Trainer(
            network=network,
            frozen=frozen,
            documents=documents,
            train=train,
            heldout=spread_over_kinds(reader, reader.indices("heldout"), params.train.evaluate_prompts),
            params=params.train,
            decay=params.position_decay or default_decay(params.block_size),
            scratch=context.scratch / "training",
            monitor=context,
            autocast=bool(remembered(context.scratch, "autocast", has_bf16_units)),
            name=context.item or NAME,
        )
        return trainer.run()
    except WrongGroups as error:
        raise StageError(f"train.groups: {error}") from error
    except TrainingDiverged as error:
        raise StageError(str(error)) from error


def _metrics(outcome: Outcome) -> dict[str, Any]:
    state, best = outcome.state, outcome.best or {}
    seconds = max(state.seconds, 1e-9)
    return {
        "steps": state.step,
        "best_step": state.best_step,
        "final_loss": state.last_loss,
        "tau_heldout": best.get("tau"),
        "tau_heldout_interval": [best.get("tau_low"), best.get("tau_high")],
        "tau_heldout_by_kind": {kind: found["tau"] for kind, found in best.get("by_kind", {}).items()},
        "acceptance_per_position": best.get("acceptance_per_position"),
        "teacher_forced_accuracy": best.get("teacher_forced_accuracy"),
        "anchors": state.blocks,
        "labels": state.labels,
        "documents_without_anchor": state.documents_without_anchor,
        "skipped_steps": state.skipped,
        "seconds": state.seconds,
        "context_tokens_per_second": state.context_rows / seconds,
        "anchors_per_second": state.blocks / seconds,
    }


def _threads() -> int:
    import torch

    return torch.get_num_threads()
