"""``train``: features in, a trained drafter out, by whatever method the drafter's section names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.drafter import DrafterParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.train_options import bring_state, check_options, leave_state, warm_start_files

if TYPE_CHECKING:
    from specflow.drafters.registry import Method
    from specflow.features.contract import FeatureContract
    from specflow.features.reader import FeatureReader
    from specflow.training.data import Coverage, Documents
    from specflow.training.frozen import FrozenEnds
    from specflow.training.job import Job

NAME = "train"
KIND = "drafter"
INPUTS = {"target": Arity.ONE, "features": Arity.ONE}

SECONDS_PER_ROW = 1.8e-3
"""Of one block row in a step: a target of 135 M parameters, two draft layers, two cores without bf16 units."""
USUAL_ROWS, USUAL_LAYERS = 8, 2
"""Where a method has no such parameter."""
STARVED = 0.1
"""Share of documents without an anchor that is worth a warning."""


def check(params: DrafterParams) -> Iterable[Problem]:
    """What can be wrong with the section by itself; agreement with captured layers is checked by the configuration."""
    train = params.train
    if params.layer_ids is not None and list(params.layer_ids) != sorted(set(params.layer_ids)):
        yield Problem(where="layer_ids", found=str(params.layer_ids), expected="unique, increasing layer ids")
    if train.seed < 0:
        yield Problem(where="train.seed", found=str(train.seed), expected="a seed of at least 0")
    if train.ranks > train.documents_per_step:
        yield Problem(
            where="train.ranks",
            found=str(train.ranks),
            expected=f"at most documents_per_step ({train.documents_per_step}): each rank reads a part of a step",
        )
    yield from check_options(train)


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


def files(params: DrafterParams) -> Iterable[Path]:
    """The drafter it starts from, so that the key follows that drafter's content."""
    return warm_start_files(params.train)


def estimate(params: DrafterParams) -> Estimate:
    train = params.train
    rows = train.documents_per_step * train.anchors_per_document * getattr(params, "block_size", USUAL_ROWS)
    return Estimate(
        seconds=train.steps * rows * SECONDS_PER_ROW * getattr(params, "num_layers", USUAL_LAYERS) / 2,
        note="two cores and a target of 135 M parameters; grows with the target's hidden size squared",
    )


def run(inputs: Inputs, params: DrafterParams, context: Context) -> Metrics:
    """Payload: ``drafter/`` (config, weights, manifest) and ``metrics.jsonl``.

    Raises ``StageError`` if the features are not this target's, or do not predict its answers, or training diverges,
    or a rank ends before its time.
    """
    import torch

    from specflow.stages.machine import resolved_threads

    before = torch.get_num_threads()
    threads = resolved_threads(context.scratch, params.train.threads)
    torch.set_num_threads(threads)
    try:
        return _run(inputs, params, context, threads=threads)
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What was found out before training."""

    job: Job
    method: Method
    documents: Documents
    coverage: Coverage
    alignment: float
    mask_token: str | None
    softmax_tokens: int
    fingerprint: dict[str, str]
    contract: FeatureContract


def _run(inputs: Inputs, params: DrafterParams, context: Context, *, threads: int) -> Metrics:
    from specflow.drafters.loading import Manifest, save_drafter
    from specflow.drafters.target_weights import TargetWeights
    from specflow.training.recording import CURVE, LOGS
    from specflow.training.tensor_file import read_tensors
    from specflow.training.worker import facts_of

    ready = _prepare(inputs, params, context, threads=threads)
    job, method = ready.job, ready.method
    bring_state(params.train, Path(job.scratch))
    _train(ready, params, context)
    leave_state(params.train, Path(job.scratch), context.output)
    tensors, result = read_tensors(job.result)
    facts = facts_of(job, TargetWeights(Path(job.target)))
    network = method.new_network(params, facts)
    network.load_state_dict(tensors, strict=True)
    layout, state = method.layout(network), result["state"]
    lineage = {
        "target": inputs.one("target").key,
        "features": inputs.one("features").key,
        "start": result["start"],
        **result["warm"],
        "step": state["best_step"],
    }
    manifest = Manifest(
        method=params.method,
        block_size=layout.block_size,
        num_proposals=layout.num_proposals,
        sample_from_anchor=layout.sample_from_anchor,
        layer_ids=tuple(job.layer_ids),
        mask_token=ready.mask_token,
        mask_token_id=job.mask_token_id,
        feature_contract=ready.contract,
        target_fingerprint=ready.fingerprint,
        lineage=lineage,
    )
    save_drafter(context.output / "drafter", network, manifest)
    shutil.copyfile(Path(job.scratch) / CURVE, context.output / CURVE)
    if (logs := Path(job.scratch) / LOGS).is_dir():
        shutil.copytree(logs, context.output / LOGS)
    coverage = ready.coverage
    return {
        **_metrics(state, result["best"] or {}),
        "alignment": ready.alignment,
        "softmax_tokens": ready.softmax_tokens,
        "parameters": sum(p.numel() for p in network.parameters()),
        "train_documents": coverage.documents,
        "train_supervised_tokens": coverage.supervised,
        "train_documents_without_anchor": coverage.documents_without_anchor,
        "anchors_per_supervised_token": state["anchors"] / max(1, coverage.supervised),
        "threads": threads,
        "ranks": params.train.ranks,
    }


def _prepare(inputs: Inputs, params: DrafterParams, context: Context, *, threads: int) -> _Prepared:
    from specflow.drafters.registry import get_method
    from specflow.drafters.target_weights import TargetWeights
    from specflow.features.reader import FeatureReader
    from specflow.stages.draft_vocabulary import draft_vocabulary
    from specflow.training.data import Documents
    from specflow.training.frozen import FrozenEnds, choose_softmax_tokens
    from specflow.training.job import Job
    from specflow.training.probe import spread_over_kinds

    target, features = inputs.one("target"), inputs.one("features")
    fingerprint = _check_contract(target, features, params, context)
    weights, reader = TargetWeights(target.path), FeatureReader(features.path)
    method = get_method(params.method)
    needs = method.needs(params)
    layer_ids = params.layers_of(reader.contract.layer_ids)
    columns = [reader.contract.layer_ids.index(i) for i in layer_ids]
    documents = Documents(reader, columns=columns, last_hidden=needs.last_hidden)
    train = reader.indices("train")
    coverage = _coverage(documents, train, features.key, context)
    vocab_size = int(weights.config["vocab_size"])
    tokens = choose_softmax_tokens(documents, train, vocab_size=vocab_size, wanted=params.train.softmax_tokens)
    context.log(f"softmax over {len(tokens)} of {vocab_size} tokens")
    share = _probe(reader, FrozenEnds.of_target(weights, softmax_tokens=tokens), context)
    mask_token, mask_id = _mask_token(target.path, params, vocab_size) if needs.mask_token else (None, None)
    if mask_id is not None:
        _check_unused(str(mask_token), mask_id, documents, train)
    draft_ids = None
    if needs.draft_vocab_size is not None:
        draft_ids = draft_vocabulary(target.path, documents, train, size=needs.draft_vocab_size, context=context)
    job = Job(
        name=context.item or params.method,
        params=params.model_dump(mode="json"),
        target=str(target.path.absolute()),
        features=str(features.path.absolute()),
        layer_ids=list(layer_ids),
        mask_token_id=mask_id,
        softmax_tokens=None if len(tokens) == vocab_size else tokens.tolist(),
        draft_ids=draft_ids,
        train=train,
        heldout=spread_over_kinds(reader, reader.indices("heldout"), params.train.evaluate_prompts),
        autocast=_autocast(params, context),
        threads=threads,
        scratch=str((context.scratch / "training").absolute()),
    )
    return _Prepared(
        job=job,
        method=method,
        documents=documents,
        coverage=coverage,
        alignment=share,
        mask_token=mask_token,
        softmax_tokens=len(tokens),
        fingerprint=fingerprint,
        contract=reader.contract,
    )


def _coverage(documents: Documents, train: list[int], features: str, context: Context) -> Coverage:
    from specflow.training.data import Coverage

    found = Coverage.of(documents, train)
    if not found.legal_anchors:
        raise StageError(
            f"expected training documents with at least two supervised tokens in a row, found none among "
            f"{found.documents} documents ({found.supervised} supervised tokens) of features "
            f"{features[:12]}; look at the tokens artifact's masks"
        )
    context.log(
        f"{found.documents} documents with {found.supervised} supervised tokens and {found.legal_anchors} legal anchors"
    )
    if found.documents_without_anchor > STARVED * found.documents:
        context.log(
            f"warning: {found.documents_without_anchor} of {found.documents} documents have no legal anchor (two "
            "supervised tokens in a row) and train nothing; look at the tokens artifact's masks"
        )
    return found


def _autocast(params: DrafterParams, context: Context) -> bool:
    from specflow.stages.machine import remembered
    from specflow.training.probe import has_bf16_units

    if params.train.precision != "auto":
        return params.train.precision == "bf16"
    return bool(remembered(context.scratch, "autocast", has_bf16_units))


def _train(ready: _Prepared, params: DrafterParams, context: Context) -> None:
    """Until ``job.result`` is there."""
    from specflow.training.guards import TrainingDiverged
    from specflow.training.init_from import CannotStart
    from specflow.training.launch import RankFailed, train_on_ranks
    from specflow.training.optimizers import WrongGroups
    from specflow.training.step import WrongDenominator
    from specflow.training.worker import train_worker

    job, train = ready.job, params.train
    if train.launcher == "torchrun":
        path = job.write()
        if not job.result.exists():
            raise StageError(
                "train.launcher is torchrun: on every machine run\n"
                f"  torchrun --nnodes NODES --nproc-per-node RANKS --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
                f"-m specflow.training {path}\n"
                "then this stage again, which makes the artifact of what it trained"
            )
        return
    try:
        if train.ranks > 1:
            train_on_ranks(job, context, ranks=train.ranks)
        else:
            train_worker(job, context, documents=ready.documents)
    except WrongGroups as error:
        raise StageError(f"train.groups: {error}") from error
    except CannotStart as error:
        raise StageError(f"train.init_from: {error}") from error
    except (TrainingDiverged, RankFailed, WrongDenominator) as error:
        raise StageError(str(error)) from error


def _check_contract(target: Artifact, features: Artifact, params: DrafterParams, context: Context) -> dict[str, str]:
    """The target's fingerprint, if the features are its own and hold what the drafter reads; else ``StageError``."""
    from specflow.features.comparison import Side, Use
    from specflow.stages.fitting import features_side, require_fit, target_side

    stored, model = features_side(features), target_side(target)
    again = "Capture the features again from this target: `specflow capture --upstream`"
    require_fit(Use.CAPTURED_FROM, stored, model, context, remedy=again)
    needs = {name: model.values[name] for name in ("hidden_size", "layer_convention", "last_hidden")}
    needs["layer_ids"] = params.layers_of(stored.values["layer_ids"])
    drafter = Side(what="drafter", where=f"drafters.{context.item}, method {params.method}", values=needs)
    add = "Add the layers to capture.layer_ids, or leave the drafter's layer_ids out"
    require_fit(Use.READS, stored, drafter, context, remedy=add)
    fingerprint: dict[str, str] = json.loads(target.file("fingerprint.json").read_text(encoding="utf-8"))
    return fingerprint


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


def _mask_token(path: Path, params: DrafterParams, vocab_size: int) -> tuple[str, int]:
    from transformers import AutoTokenizer

    from specflow.drafters.mask_token import NoMaskToken, choose_mask_token

    config = path / "generation_config.json"
    ends = (json.loads(config.read_text()) if config.exists() else {}).get("eos_token_id") or []
    tokenizer = AutoTokenizer.from_pretrained(path)
    try:
        return choose_mask_token(
            tokenizer,
            vocab_size=vocab_size,
            wanted=getattr(params, "mask_token", None),
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


def _metrics(state: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any]:
    seconds = max(state["seconds"], 1e-9)
    return {
        "steps": state["step"],
        "best_step": state["best_step"],
        "final_loss": state["last_loss"],
        "tau_heldout": best.get("tau"),
        "tau_heldout_interval": [best.get("tau_low"), best.get("tau_high")],
        "tau_heldout_by_kind": {kind: found["tau"] for kind, found in best.get("by_kind", {}).items()},
        "acceptance_per_position": best.get("acceptance_per_position"),
        "teacher_forced_accuracy": best.get("teacher_forced_accuracy"),
        "anchors": state["anchors"],
        "labels": state["labels"],
        "documents_without_anchor": state["documents_without_anchor"],
        "skipped_steps": state["skipped"],
        "seconds": state["seconds"],
        "context_tokens_per_second": state["context_rows"] / seconds,
        "anchors_per_second": state["anchors"] / seconds,
    }
