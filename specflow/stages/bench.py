"""``bench``: plain and speculative decoding of held-out prompts, alternating in one run, one request at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specflow.config.bench import BenchParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError
from specflow.stages.schedulers import missing_stages

NAME = "bench"
KIND = "benchmark"
INPUTS: Mapping[str, Arity] = {
    "target": Arity.ONE,
    "drafter": Arity.ONE,
    "tokens": Arity.ONE,
    "calibration": Arity.OPTIONAL,
    "costs": Arity.OPTIONAL,
}

CONVENTIONS = {
    "acceptance": "share of rounds, before any cut by an end token or the length limit; in trees by depth",
    "tokens_per_second": "tokens after the first over the time from the first to the last",
    "speedup": "ratio of tokens per second, each a ratio of sums; interval: 95 %, bootstrap over prompts",
    "predicted": "mean time of a round (draft + verify + state + other) of the whole run over tau of the kind",
}
WARMUP_TOKENS = 16
AUTO_PROMPTS = 4
"""Prompts whose answers decide on the tree where that is left to measurements."""


def check(params: BenchParams) -> Iterable[Problem]:
    if params.max_new_tokens < 2:
        yield Problem(
            where="max_new_tokens",
            found=str(params.max_new_tokens),
            expected="at least 2",
            hint="the first token comes from prefill, so one token has no decode time",
        )


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    yield from missing_stages(NAME, sections[NAME].scheduler, sections)


def files(params: BenchParams) -> Iterable[Path]:
    return ()


def estimate(params: BenchParams) -> Estimate:
    times = 2 * params.repeats
    return Estimate(note=f"every held-out prompt decoded {times} times, {params.max_new_tokens} tokens each")


def run(inputs: Inputs, params: BenchParams, context: Context) -> Metrics:
    """Payload: ``result.json`` (the result record) and ``rounds.jsonl``.

    Raises ``StageError`` if no baseline could be formed: without it there is no speed-up to report.
    """
    from dataclasses import asdict

    from specflow.data.documents import iterate_documents
    from specflow.decoding.plain import decode_plain
    from specflow.decoding.sampling import sampling_of
    from specflow.decoding.speculative import decode_speculative
    from specflow.drafters.loading import load_drafter
    from specflow.reporting.measure import by_kind
    from specflow.serving.pairs import measure_pairs
    from specflow.serving.requests import heldout_requests
    from specflow.stages.machine import resolved
    from specflow.stages.schedulers import asked_scheduler, described
    from specflow.targets.target import Target

    path = inputs.one("target").path
    requests = heldout_requests(iterate_documents(inputs.one("tokens").path), per_kind=params.prompts_per_kind)
    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    _same_contract(inputs, context, precision=precision)
    target = Target.load(path, precision=precision, threads=threads)
    proposer = load_drafter(inputs.one("drafter").path, target)
    tree, chosen = _tree(target, proposer, requests, params, context)
    scheduler = asked_scheduler(
        params.scheduler,
        params.scheduler_drafters,
        target=target,
        proposer=proposer,
        prompt=requests[0].prompt,
        calibration=inputs.optional("calibration"),
        costs=inputs.optional("costs"),
        context=context,
    )

    def plain(prompt: Sequence[int], *, limit: int = params.max_new_tokens) -> Any:
        return decode_plain(target, [prompt], max_new_tokens=limit, sampling=[sampling_of(params.sampling, prompt)])[0]

    def speculative(prompt: Sequence[int], *, limit: int = params.max_new_tokens) -> Any:
        own = sampling_of(params.sampling, prompt)
        return decode_speculative(
            target, proposer, prompt, max_new_tokens=limit, sampling=own, tree=tree, scheduler=scheduler
        )

    def greedy(prompt: Sequence[int], *, limit: int) -> Any:
        return decode_plain(target, [prompt], max_new_tokens=limit)[0]

    for request in requests[: params.warmup_prompts]:
        plain(request.prompt, limit=WARMUP_TOKENS)
        speculative(request.prompt, limit=WARMUP_TOKENS)
    with context.progress("plain and speculative, alternating", total=len(requests), unit="prompts") as progress:
        pairs = measure_pairs(
            requests,
            plain=plain,
            speculative=speculative,
            repeats=params.repeats,
            kept=context.scratch / "pairs.jsonl",
            on_pair=progress.advance,
        )
    total, kinds = by_kind(pairs)
    if total["speedup"] is None:
        raise StageError(
            "no baseline: no prompt gave more than one token, so there is no decode time to compare; "
            "raise bench.max_new_tokens or use prompts with longer answers"
        )
    record = {
        **_circumstances(inputs, params, target=target, requests=requests),
        "total": total,
        "kinds": kinds,
        "tree": tree and {**asdict(tree), "chosen": chosen},
        "scheduler": scheduler and {**(described(scheduler) or {}), "granted": _granted(pairs, scheduler)},
        "equality": None if _sampled(params) else _equality(target, pairs, requests, params),
        "transformers": _transformers(path, requests, params, plain=greedy, precision=target.precision)
        if params.compare_transformers
        else None,
    }
    (context.output / "result.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _write_rounds(context.output / "rounds.jsonl", pairs)
    context.log(_sentence(total))
    return _metrics(record)


def _tree(
    target: Any, proposer: Any, requests: Sequence[Any], params: BenchParams, context: Context
) -> tuple[Any, Mapping[str, Any] | None]:
    """The shape of the trees, none where chains are asked for, and how ``auto`` came to it."""
    from specflow.decoding.tree_choice import Written, choose_tree
    from specflow.decoding.trees import TreeShape
    from specflow.stages.machine import remembered
    from specflow.stages.trees import asked_shape

    if params.tree != "auto":
        return asked_shape(params.tree, params.tree_drafters, proposer, context), None
    if asked_shape(params.tree, params.tree_drafters, proposer, context) is None:
        return None, None

    def decide() -> dict[str, Any]:
        from specflow.decoding.plain import decode_plain
        from specflow.decoding.sampling import sampling_of

        stride = max(len(requests) // AUTO_PROMPTS, 1)
        texts = []
        for request in requests[::stride][:AUTO_PROMPTS]:
            own = sampling_of(params.sampling, request.prompt)
            (answer,) = decode_plain(target, [request.prompt], max_new_tokens=params.max_new_tokens, sampling=[own])
            texts.append(Written(request.prompt, answer.tokens))
        try:
            choice = choose_tree(target, proposer, texts)
        except ValueError as error:
            raise StageError(str(error)) from error
        context.log(str(choice))
        return choice.as_json()

    found: dict[str, Any] = remembered(context.scratch, "tree", decide)
    return TreeShape(**found["best"]["shape"]), found


def _same_contract(inputs: Inputs, context: Context, *, precision: str) -> None:
    """``StageError`` unless the drafter is this target's; precision and thinking mode may differ, and are told."""
    from dataclasses import replace

    from specflow.features.comparison import Use
    from specflow.stages.fitting import RETRAIN, drafter_side, require_fit, target_side

    target = target_side(inputs.one("target"), precision=precision)
    target = replace(target, values={**target.values, "thinking": _thinking(inputs)})
    require_fit(Use.DRAFTS_FOR, drafter_side(inputs.one("drafter")), target, context, remedy=RETRAIN)


def _thinking(inputs: Inputs) -> str:
    """Mode of the held-out prompts."""
    from specflow.data.documents import iterate_documents
    from specflow.data.thinking import mode_name

    return mode_name({d.thinking for d in iterate_documents(inputs.one("tokens").path) if d.split == "heldout"})


def _circumstances(inputs: Inputs, params: BenchParams, *, target: Any, requests: Sequence[Any]) -> dict[str, Any]:
    """Everything a reader must know to compare the figures with others."""
    from specflow.decoding.metrics import TAU_CONVENTION
    from specflow.drafters.loading import read_manifest
    from specflow.serving.machine import hardware, versions
    from specflow.serving.requests import requests_hash

    drafter = inputs.one("drafter")
    manifest, fingerprint = read_manifest(drafter.path), _json(inputs.one("target").path / "fingerprint.json")
    found = versions()
    return {
        "format": 1,
        "conventions": {"tau": TAU_CONVENTION, **CONVENTIONS},
        "sampling": {"name": "sampled" if params.sampling.temperature else "greedy", **params.sampling.model_dump()},
        "template": {"sha256": fingerprint.get("template_sha256"), "thinking": _thinking(inputs)},
        "dataset": {
            "sha256": requests_hash(requests),
            "prompts": len(requests),
            "by_kind": {kind: sum(r.kind == kind for r in requests) for kind in sorted({r.kind for r in requests})},
            "max_new_tokens": params.max_new_tokens,
            "repeats": params.repeats,
        },
        "concurrency": 1,
        "cache_state": "empty before every prompt; no prefix cache",
        "engine": {
            "name": "embedded",
            "version": found.get("specflow", "source"),
            "precision": target.precision,
            "threads": target.threads,
            "device": "cpu",
        },
        "drafter": {
            "name": drafter.item or drafter.key[:12],
            "key": drafter.key,
            "method": manifest.method,
            "block_size": manifest.block_size,
            "num_proposals": manifest.num_proposals,
            "layer_ids": list(manifest.layer_ids),
            "trained_in_precision": manifest.feature_contract.precision,
            "feature_contract": manifest.feature_contract.hash,
        },
        "target": fingerprint,
        "baseline": "plain decoding of the same engine, alternating with speculative decoding in this run",
        "hardware": hardware(threads=target.threads),
        "versions": found,
    }


def _sampled(params: BenchParams) -> bool:
    """Whether the two outputs may differ, or are not the argmax of the target's own logits."""
    sampling = params.sampling.model_dump(exclude={"seed"})
    return bool(sampling != type(params.sampling)().model_dump(exclude={"seed"}))


def _equality(target: Any, pairs: Sequence[Any], requests: Sequence[Any], params: BenchParams) -> dict[str, Any]:
    """Prompts whose outputs differ in any repeat, with the fp32 logit gap at the first difference; fails nothing."""
    from specflow.serving.verification.equality import difference, first_difference, near_tie_limit
    from specflow.targets.target import Target

    rows: list[dict[str, Any]] = []
    exact = None
    for pair, request in zip(pairs, requests, strict=True):
        repeats = zip(pair.plain, pair.speculative, strict=True)
        for plain, other in dict.fromkeys((tuple(p.tokens), tuple(s.tokens)) for p, s in repeats):
            if first_difference(plain, other) is None:
                continue
            exact = exact or Target.load(target.path, precision="fp32", threads=target.threads)
            found = difference(exact, id=pair.id, kind=pair.kind, prompt=request.prompt, plain=plain, speculative=other)
            assert found is not None  # they differ
            limit = near_tie_limit(target.precision, params.near_tie, largest_logit=found.largest_logit)
            rows.append({**found.as_json(), "near_tie": found.gap <= limit})
    ids = {row["id"] for row in rows}
    far = {row["id"] for row in rows if not row["near_tie"]}
    return {"prompts": len(pairs), "differing": len(ids), "near_ties": len(ids - far), "differences": rows}


def _transformers(
    path: Path, requests: Sequence[Any], params: BenchParams, *, plain: Any, precision: str
) -> dict[str, Any]:
    """Greedy decoding by this engine beside ``generate`` in fp32 and bf16, alternating, on a few prompts."""
    from specflow.reporting.measure import rate
    from specflow.serving.generate_baseline import DTYPES, GenerateBaseline, alternate

    stride = max(len(requests) // params.transformers_prompts, 1)
    prompts = [r.prompt for r in requests[::stride][: params.transformers_prompts]]
    limit = min(params.transformers_tokens, params.max_new_tokens)
    own = f"plain decoding here, {precision}"
    modes: dict[str, Callable[[Sequence[int]], Any]] = {own: partial(plain, limit=limit)}
    for dtype in DTYPES:
        modes[f"generate, {dtype}"] = partial(GenerateBaseline(path, dtype=dtype).decode, max_new_tokens=limit)
    for decode in modes.values():
        decode(prompts[0])
    rates = {name: rate(found) for name, found in alternate(modes, prompts).items()}
    base = rates[own].per_second
    return {
        "prompts": len(prompts),
        "max_new_tokens": limit,
        "rates": {
            name: {
                **r.as_json(),
                "plain_over_this": base / r.per_second if base and r.per_second and name != own else None,
            }
            for name, r in rates.items()
        },
    }


def _granted(pairs: Sequence[Any], scheduler: Any) -> dict[str, Any]:
    from specflow.decoding.granted_metrics import granted

    return granted((g for pair in pairs for g in pair.speculative), scheduler.num_proposals)


def _write_rounds(path: Path, pairs: Sequence[Any]) -> None:
    from dataclasses import asdict

    with path.open("w", encoding="utf-8") as file:
        for pair in pairs:
            for repeat, generation in enumerate(pair.speculative):
                rounds = [asdict(r) for r in generation.rounds]
                file.write(json.dumps({"id": pair.id, "kind": pair.kind, "repeat": repeat, "rounds": rounds}) + "\n")


def _sentence(total: Mapping[str, Any]) -> str:
    speedup = total["speedup"]
    return (
        f"plain {total['plain']['tokens_per_second']:.1f} tokens/s, speculative "
        f"{total['speculative']['tokens_per_second']:.1f} tokens/s, tau {total['tau']:.2f}, speed-up "
        f"{speedup['ratio']:.2f} (95 % interval {speedup['low']:.2f} to {speedup['high']:.2f})"
    )


def _metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    def short(group: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "plain_tokens_per_second": group["plain"]["tokens_per_second"],
            "drafter_tokens_per_second": group["speculative"]["tokens_per_second"],
            "speedup": (group["speedup"] or {}).get("ratio"),
            "tau": group["tau"],
        }

    kinds = {kind: short(group) for kind, group in record["kinds"].items()}
    equality = record["equality"]
    compared = {} if equality is None else {"differing_prompts": equality["differing"]}
    return {**short(record["total"]), **compared, "kinds": kinds}


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return value
