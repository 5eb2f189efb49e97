"""``verify``: proofs that the export is the trained drafter and that the drafter changes no output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specflow.config.verify import VerifyParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.schedulers import missing_stages

NAME = "verify"
KIND = "verification"
INPUTS: Mapping[str, Arity] = {
    "target": Arity.ONE,
    "drafter": Arity.ONE,
    "export": Arity.ONE,
    "features": Arity.ONE,
    "tokens": Arity.ONE,
    "calibration": Arity.OPTIONAL,
    "costs": Arity.OPTIONAL,
}

CERTIFICATE_PROMPT = 32
"""Last tokens of the prompt whose answers are drawn: every answer begins with a pass over all of them."""
LEAST_SAMPLES = 50


def check(params: VerifyParams) -> Iterable[Problem]:
    if params.precision == "fp32" and params.near_tie:
        yield Problem(
            where="near_tie",
            found=str(params.near_tie),
            expected="none or 0 with precision fp32, where any difference is a defect",
            hint="use precision bf16 or packed to allow near ties",
        )
    asked = params.lossless
    if 0 < asked.samples < LEAST_SAMPLES:
        yield Problem(
            where="lossless.samples",
            found=str(asked.samples),
            expected=f"at least {LEAST_SAMPLES}, or 0 for none",
            hint="fewer answers show nothing",
        )
    if asked.enabled and not asked.samples and not asked.continuations:
        yield Problem(
            where="lossless",
            found="samples 0 and continuations 0",
            expected="at least one of them",
            hint="raise one, or leave the certificate out",
        )


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    yield from missing_stages(NAME, sections[NAME].scheduler, sections)


def files(params: VerifyParams) -> Iterable[Path]:
    return ()


def estimate(params: VerifyParams) -> Estimate:
    note = f"every held-out prompt decoded twice, {params.max_new_tokens} tokens each"
    if params.lossless.enabled:
        asked = params.lossless
        note += f"; per sampling setting {asked.samples} answers of {asked.answer_tokens} tokens"
        note += f" and {asked.prompts * asked.continuations} of {asked.continuation_tokens}"
    return Estimate(note=note)


def run(inputs: Inputs, params: VerifyParams, context: Context) -> Metrics:
    """Payload: ``verification.json``. Raises ``StageError`` after logging every check if one failed."""
    from specflow.serving.verification.check import TABLES
    from specflow.stages.machine import resolved
    from specflow.targets.target import Target

    path = inputs.one("target").path
    _same_contracts(inputs, context)
    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    exact = Target.load(path, precision="fp32", threads=threads)
    checks = _stored(inputs, params, context, exact)
    target = exact if precision == "fp32" else Target.load(path, precision=precision, threads=threads)
    checks.append(_greedy(inputs, params, context, target=target, exact=exact))
    if params.lossless.enabled and params.lossless.samples:
        checks.append(_lossless(inputs, params, context, target=target))
    if params.lossless.enabled and params.lossless.continuations:
        checks.append(_continuations(inputs, params, context, target=target))
    for done in checks:
        context.log(str(done))
    failed = [c for c in checks if not c.passed]
    record = {
        "passed": not failed,
        "precision": precision,
        "max_new_tokens": params.max_new_tokens,
        "tree": params.tree and params.tree.model_dump(),
        "scheduler": params.scheduler and params.scheduler.model_dump(mode="json"),
        "checks": [c.as_json() for c in checks],
    }
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    if failed:
        raise StageError(f"{len(failed)} of {len(checks)} checks failed:\n" + "\n".join(map(str, failed)))
    (context.output / "verification.json").write_text(text, encoding="utf-8")
    return {"passed": True, **{c.name: {k: v for k, v in c.numbers.items() if k not in TABLES} for c in checks}}


def _stored(inputs: Inputs, params: VerifyParams, context: Context, target: Any) -> list[Any]:
    """The checks on stored held-out documents: tokens, alignment, export, train = serve."""
    from specflow.data.documents import iterate_documents
    from specflow.drafters.loading import load_drafter, load_network, read_manifest
    from specflow.features.store import FeatureReader
    from specflow.serving.verification import alignment, blocks, parity

    drafter, draft = inputs.one("drafter").path, inputs.one("export").file("draft")
    manifest = read_manifest(drafter)
    reader = FeatureReader(inputs.one("features").path)
    stored = reader.contract.layer_ids
    documents = [reader.document(i) for i in _spread(reader, params.documents)]
    wanted = {document.index for document in documents}
    ids = {i: d.ids for i, d in enumerate(iterate_documents(inputs.one("tokens").path)) if i in wanted}
    checks = [alignment.check_tokens(documents, ids)]
    with context.progress("checking stored features", total=len(documents), unit="documents") as progress:
        checks.append(
            alignment.check_alignment(
                documents,
                target=target,
                layer_ids=stored,
                dtype=reader.contract.dtype,
                on_document=progress.advance,
            )
        )
    documents = [_only_layers(d, stored, manifest.layer_ids) for d in documents]
    anchors = list(blocks.anchors_of(documents, per_document=params.anchors_per_document))
    trained_path = parity.as_stretched(draft, drafter / "drafter", context.scratch / "stretched")
    trained, cast, exported = (
        load_drafter(path, target, precision="fp32")
        for path in (
            trained_path,
            parity.export_as_drafter(draft, trained_path, context.scratch / "cast", cast_only=True),
            parity.export_as_drafter(draft, trained_path, context.scratch / "exported"),
        )
    )
    dtype = json.loads((draft / "config.json").read_text(encoding="utf-8"))["dtype"]
    checks.append(parity.check_export(anchors, trained=trained, cast=cast, exported=exported, dtype=dtype))
    network = load_network(trained_path)
    checks.append(
        parity.check_train_serve(anchors, method=manifest.method, network=network, proposer=trained, embed=target.embed)
    )
    return checks


def _greedy(inputs: Inputs, params: VerifyParams, context: Context, *, target: Any, exact: Any) -> Any:
    """Speculative output equals plain decoding on held-out prompts; finished prompts are kept in ``scratch``.

    ``target`` decodes, ``exact`` is the same in fp32.
    """
    from specflow.data.documents import iterate_documents
    from specflow.decoding.plain import decode_plain
    from specflow.decoding.speculative import decode_speculative
    from specflow.drafters.loading import load_drafter
    from specflow.serving.requests import heldout_requests
    from specflow.serving.verification.equality import check_equality
    from specflow.serving.verification.journal import Journal
    from specflow.stages.trees import asked_shape

    requests = heldout_requests(iterate_documents(inputs.one("tokens").path), per_kind=params.prompts_per_kind)
    plain, speculative = Journal(context.scratch / "plain.jsonl"), Journal(context.scratch / "speculative.jsonl")
    with context.progress("plain and speculative decoding", total=2 * len(requests), unit="prompts") as progress:
        progress.advance(len(plain) + len(speculative))
        left = [i for i in range(len(requests)) if i not in plain]

        def keep(index: int, generation: Any) -> None:
            plain.add(left[index], generation.tokens)
            progress.advance()

        decode_plain(
            target,
            [requests[i].prompt for i in left],
            max_new_tokens=params.max_new_tokens,
            batch_size=params.batch_size,
            on_done=keep,
        )
        proposer = load_drafter(inputs.one("drafter").path, target)
        tree = asked_shape(params.tree, params.tree_drafters, proposer, context)
        scheduler = _scheduler(inputs, params, context, target=target, proposer=proposer, prompt=requests[0].prompt)
        for index, request in enumerate(requests):
            if index in speculative:
                continue
            limit = params.max_new_tokens
            found = decode_speculative(
                target, proposer, request.prompt, max_new_tokens=limit, tree=tree, scheduler=scheduler
            )
            speculative.add(index, found.tokens)
            progress.advance()
    return check_equality(
        requests,
        plain=plain,
        speculative=speculative,
        exact=exact,
        near_tie=params.near_tie,
        precision=target.precision,
    )


def _lossless(inputs: Inputs, params: VerifyParams, context: Context, *, target: Any) -> Any:
    """Sampled answers to the end of the shortest held-out prompt, in an alphabet of the likeliest tokens."""
    from specflow.data.documents import iterate_documents
    from specflow.drafters.base import Samples
    from specflow.drafters.loading import load_drafter
    from specflow.serving.requests import heldout_requests
    from specflow.serving.verification.lossless import Plan, check_lossless, few_of
    from specflow.serving.verification.restricted import RestrictedTarget, likely_alphabet
    from specflow.serving.verification.settings import settings_of
    from specflow.stages.trees import asked_shape

    asked = params.lossless
    requests = heldout_requests(iterate_documents(inputs.one("tokens").path))
    shortest = min((request.prompt for request in requests), key=lambda prompt: (len(prompt), prompt))
    prompt = shortest[-CERTIFICATE_PROMPT:]
    restricted = RestrictedTarget(target, likely_alphabet(target, prompt, asked.alphabet))
    proposer = load_drafter(inputs.one("drafter").path, restricted)  # drafters without a head of their own keep to it
    plan = Plan(
        samples=asked.samples,
        length=asked.answer_tokens,
        temperatures=asked.temperatures,
        significance=asked.significance,
        batch_size=params.batch_size,
        tree=asked_shape(params.tree, params.tree_drafters, proposer, context),
        scheduler=_scheduler(inputs, params, context, target=restricted, proposer=proposer, prompt=prompt),
        seed=asked.seed,
    )
    count = len(settings_of(plan.temperatures, top_k=few_of(restricted), drawn=isinstance(proposer, Samples)))
    with context.progress("distribution of sampled answers", total=count * asked.samples, unit="answers") as progress:
        return check_lossless(restricted, proposer, prompt, plan, on_answer=progress.advance)


def _scheduler(
    inputs: Inputs, params: VerifyParams, context: Context, *, target: Any, proposer: Any, prompt: Sequence[int]
) -> Any:
    from specflow.stages.schedulers import asked_scheduler

    return asked_scheduler(
        params.scheduler,
        params.scheduler_drafters,
        target=target,
        proposer=proposer,
        prompt=prompt,
        calibration=inputs.optional("calibration"),
        costs=inputs.optional("costs"),
        context=context,
    )


def _continuations(inputs: Inputs, params: VerifyParams, context: Context, *, target: Any) -> Any:
    """Sampled continuations of held-out prompts by the target as it is; finished ones are kept in ``scratch``."""
    from specflow.drafters.loading import load_drafter
    from specflow.serving.verification.continuations import Plan, check_continuations
    from specflow.serving.verification.journal import Journal
    from specflow.serving.verification.shared_prompts import SharedPrompts
    from specflow.stages.trees import asked_shape

    asked = params.lossless
    proposer = load_drafter(inputs.one("drafter").path, target)
    plan = Plan(
        prompts=_short_prompts(inputs, asked.prompts),
        count=asked.continuations,
        length=asked.continuation_tokens,
        temperatures=asked.temperatures,
        classes=asked.classes,
        significance=asked.significance,
        batch_size=params.batch_size,
        tree=asked_shape(params.tree, params.tree_drafters, proposer, context),
        seed=asked.seed,
    )
    shared = SharedPrompts(target, plan.prompts)
    speculative, plain = (Journal(context.scratch / f"continuations-{name}.jsonl") for name in ("drafted", "plain"))
    total = 2 * plan.answers(proposer)
    with context.progress("distribution of sampled continuations", total=total, unit="answers") as progress:
        progress.advance(len(speculative) + len(plain))
        return check_continuations(
            shared, proposer, plan, speculative=speculative, plain=plain, on_answer=progress.advance
        )


def _short_prompts(inputs: Inputs, count: int) -> list[list[int]]:
    """The ``count`` shortest held-out prompts, of every kind in turn; fewer where there are fewer.

    The drafter knows some kinds better, and only what it proposes well is accepted and so tested.
    """
    from itertools import chain, zip_longest

    from specflow.data.documents import iterate_documents
    from specflow.serving.requests import heldout_requests

    by_kind: dict[str, list[tuple[int, ...]]] = {}
    for request in heldout_requests(iterate_documents(inputs.one("tokens").path)):
        by_kind.setdefault(request.kind, []).append(request.prompt)
    ranked = [sorted(prompts, key=lambda prompt: (len(prompt), prompt)) for _, prompts in sorted(by_kind.items())]
    prompts = dict.fromkeys(prompt for prompt in chain(*zip_longest(*ranked)) if prompt)
    return [list(prompt) for prompt in list(prompts)[:count]]


def _same_contracts(inputs: Inputs, context: Context) -> None:
    """``StageError`` unless features, drafter and export are of this target, and of each other."""
    from specflow.features.comparison import Use
    from specflow.stages.fitting import RETRAIN, drafter_side, export_side, features_side, require_fit, target_side

    target, features = target_side(inputs.one("target")), features_side(inputs.one("features"))
    drafter, export = drafter_side(inputs.one("drafter")), export_side(inputs.one("export"))
    require_fit(Use.CAPTURED_FROM, features, target, context, remedy="Capture the features again from this target")
    require_fit(Use.DRAFTS_FOR, drafter, target, context, remedy=RETRAIN)
    own = "Verify with the features it was trained on, or train it again on these"
    require_fit(Use.TRAINED_ON, drafter, features, context, remedy=own)
    require_fit(Use.EXPORT_OF, export, drafter, context, remedy="Export the drafter again")


def _spread(reader: Any, count: int) -> list[int]:
    """``count`` held-out documents, evenly over the kinds' order in the store; the shortest suffice for a proof."""
    found: Sequence[int] = reader.indices("heldout")
    if not found:
        raise StageError("the features hold no held-out document: add held-out prompts and capture again")
    stride = max(len(found) // count, 1)
    return list(found[::stride][:count])


def _only_layers(document: Any, stored: tuple[int, ...], wanted: tuple[int, ...]) -> Any:
    """The document with the layers the drafter reads."""
    from dataclasses import replace

    missing = [k for k in wanted if k not in stored]
    if missing:
        raise StageError(f"the drafter reads layers {list(wanted)}, the features hold {list(stored)}")
    return replace(document, features_TKH=document.features_TKH[:, [stored.index(k) for k in wanted]])
