"""What the train stage finds out before training: whether the inputs fit, and the job that every rank reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specflow.config.drafter import DrafterParams
from specflow.stages.contract import Artifact, Context, Inputs, StageError

if TYPE_CHECKING:
    from specflow.drafters.registry import Method
    from specflow.features.contract import FeatureContract
    from specflow.features.reader import FeatureReader
    from specflow.training.data import Coverage, Documents
    from specflow.training.frozen import FrozenEnds
    from specflow.training.job import Job

STARVED = 0.1
"""Share of documents without an anchor that is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
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


def prepare(inputs: Inputs, params: DrafterParams, context: Context, *, threads: int) -> Prepared:
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
    return Prepared(
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
