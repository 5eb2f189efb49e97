"""``parity``: a server with the exported drafter against the embedded engine and transformers, prompt by prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.parity import ParityParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

if TYPE_CHECKING:
    from specflow.serving.requests import Request
    from specflow.serving.verification.answers import Answers
    from specflow.serving.verification.check import Check
    from specflow.stages.draft_server import Drafting
    from specflow.targets.target import Target

NAME = "parity"
KIND = "parity"
INPUTS: Mapping[str, Arity] = {
    "target": Arity.ONE,
    "drafter": Arity.ONE,
    "export": Arity.ONE,
    "tokens": Arity.ONE,
}
RECORD = "parity.json"
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def check(params: ParityParams) -> Iterable[Problem]:
    from specflow.stages.sglang_section import check_section

    yield from check_section(params.sglang)


def files(params: ParityParams) -> Iterable[Path]:
    return ()


def estimate(params: ParityParams) -> Estimate:
    return Estimate(note=f"every held-out prompt decoded three times, {params.max_new_tokens} tokens each")


def run(inputs: Inputs, params: ParityParams, context: Context) -> Metrics:
    """Payload: ``parity.json``. Raises ``StageError`` after logging every check if one failed.

    Prompts are served one at a time, each with a cache key of its own, so that no prefix comes from another request.
    """
    from specflow.data.documents import iterate_documents
    from specflow.serving.draft_directory import manifest_of, open_draft
    from specflow.serving.layouts.registry import ENGINES
    from specflow.serving.layouts.state_drafters import TREE
    from specflow.serving.lint import lint
    from specflow.serving.requests import heldout_requests, requests_hash
    from specflow.serving.verification import served as claims
    from specflow.serving.verification.answers import Answers
    from specflow.stages.draft_server import drafting_server
    from specflow.stages.fitting import same_contracts
    from specflow.stages.machine import resolved_threads
    from specflow.targets.target import Target

    target_path = inputs.one("target").path
    same_contracts(inputs, context)
    findings = lint(
        open_draft(inputs.one("export").path, target=target_path, drafter=inputs.one("drafter").path),
        engine=ENGINES[0],
    ).findings
    requests = heldout_requests(iterate_documents(inputs.one("tokens").path), per_kind=params.prompts_per_kind)
    threads = resolved_threads(context.scratch, params.threads)
    exact = Target.load(target_path, precision="fp32", threads=threads)
    answers = {name: Answers(context.scratch / f"{name}.jsonl") for name in ("served", "embedded", "plain")}
    with drafting_server(params.sglang, inputs, context) as server:
        settings = claims.check_settings(server.settings, other_model=server.other_model)
        if not settings.passed:  # whatever it answers, it would be another drafter's
            raise StageError(f"parity: the server cannot be compared:\n{settings}")
        _forget_another_server(server, context.scratch, answers["served"])
        _serve(server, requests, params, context, exact, answers["served"])
        warnings = server.warnings()
    target = exact if server.precision == "fp32" else Target.load(target_path, precision="bf16", threads=threads)
    _decode(inputs, requests, params, context, target, answers)
    checks = [
        settings,
        _equal(requests, params, exact, server.precision, served=answers["served"], plain=answers["plain"]),
    ]
    if params.transformers_prompts:
        checks.append(_generated(target_path, requests, params, exact, server.precision, answers["served"]))
    pair = {"served": answers["served"], "embedded": answers["embedded"]}
    checks.append(
        claims.check_counts(requests, **pair, precision=server.precision, gap=params.acceptance_gap, findings=findings),
    )
    checks.append(
        claims.check_working(requests, **pair, least=params.min_accept_length, findings=findings, warnings=warnings)
    )
    record = {
        "format": 1,
        "engine": {"name": "sglang", "version": server.version, "settings": {s.name: s.found for s in server.settings}},
        "precision": server.precision,
        "concurrency": 1,
        "cache_state": "no prefix shared: every prompt has a cache key of its own",
        "sampling": "greedy",
        "max_new_tokens": params.max_new_tokens,
        "tree": manifest_of(inputs.one("export").file("draft")).get(TREE),
        "dataset": {"sha256": requests_hash(requests), "prompts": len(requests)},
        "lint": [str(finding) for finding in findings],
    }
    if not all(c.passed for c in checks):
        answers["served"].forget()  # what is repaired before the next run is likely the server
    return _concluded(checks, record, context)


def _forget_another_server(server: Drafting, scratch: Path, served: Answers) -> None:
    """Answers that are kept are of a server that says the same of itself as this one."""
    said = {"version": server.version, "precision": server.precision, **{s.name: s.found for s in server.settings}}
    path = scratch / "server.json"
    if not path.exists() or json.loads(path.read_text(encoding="utf-8")) != said:
        served.forget()
        path.write_text(json.dumps(said), encoding="utf-8")


def _concluded(checks: Sequence[Check], record: Mapping[str, Any], context: Context) -> Metrics:
    from specflow.serving.verification.served import as_metrics

    for done in checks:
        context.log(str(done))
    failed = [c for c in checks if not c.passed]
    if failed:
        raise StageError(f"{len(failed)} of {len(checks)} checks failed:\n" + "\n".join(map(str, failed)))
    whole = {**record, "passed": True, "checks": [c.as_json() for c in checks]}
    (context.output / RECORD).write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return {"passed": True, "server_version": record["engine"]["version"], **as_metrics(checks)}


def _serve(
    server: Drafting,
    requests: Sequence[Request],
    params: ParityParams,
    context: Context,
    target: Target,
    answers: Answers,
) -> None:
    """Ask the server for what is missing, one prompt at a time."""
    with context.progress("answers of the server", total=len(requests), unit="prompts") as progress:
        progress.advance(len(answers))
        left = {i: request.prompt for i, request in enumerate(requests) if i not in answers}
        for index, answer in server.greedy(left, max_new_tokens=params.max_new_tokens, end_ids=target.end_ids):
            answers.add(index, answer)
            progress.advance()


def _decode(
    inputs: Inputs,
    requests: Sequence[Request],
    params: ParityParams,
    context: Context,
    target: Target,
    answers: Mapping[str, Answers],
) -> None:
    """The embedded engine, plain and with the trained drafter in the dtype of the export: what the server must have.

    With trees where the export is served with trees.
    """
    from specflow.decoding.plain import decode_plain
    from specflow.decoding.speculative import decode_speculative
    from specflow.decoding.trees import TreeShape
    from specflow.drafters.loading import load_drafter
    from specflow.serving.draft_directory import manifest_of
    from specflow.serving.layouts.state_drafters import TREE
    from specflow.serving.verification.answers import Answer, histogram
    from specflow.serving.verification.parity import as_stretched, export_as_drafter

    draft = inputs.one("export").file("draft")
    trained = as_stretched(draft, inputs.one("drafter").file("drafter"), context.scratch / "stretched")
    proposer = load_drafter(export_as_drafter(draft, trained, context.scratch / "cast", cast_only=True), target)
    tree = manifest_of(draft).get(TREE)
    shape = None if tree is None else TreeShape(**tree)
    plain, embedded, limit = answers["plain"], answers["embedded"], params.max_new_tokens
    with context.progress("the embedded engine", total=2 * len(requests), unit="prompts") as progress:
        progress.advance(len(plain) + len(embedded))
        for index, request in enumerate(requests):
            if index not in plain:
                found = decode_plain(target, [request.prompt], max_new_tokens=limit)[0]
                plain.add(index, Answer(tokens=tuple(found.tokens), accepted=()))
                progress.advance()
            if index not in embedded:
                found = decode_speculative(target, proposer, request.prompt, max_new_tokens=limit, tree=shape)
                rounds = histogram(r.accepted for r in found.rounds)
                embedded.add(index, Answer(tokens=tuple(found.tokens), accepted=rounds))
                progress.advance()


def _equal(
    requests: Sequence[Request], params: ParityParams, exact: Target, precision: str, *, served: Answers, plain: Answers
) -> Check:
    from specflow.serving.verification.equality import check_equality

    return check_equality(
        requests,
        plain=plain,
        speculative=served,
        exact=exact,
        near_tie=params.near_tie,
        precision=precision,
        what="The server's greedy output equals plain decoding of the embedded engine, token for token",
    )


def _generated(
    path: Path, requests: Sequence[Request], params: ParityParams, exact: Target, precision: str, served: Answers
) -> Check:
    """Some prompts, spread over all, against transformers' own ``generate``."""
    from specflow.serving.generate_baseline import GenerateBaseline
    from specflow.serving.verification.equality import check_equality

    stride = max(len(requests) // params.transformers_prompts, 1)
    chosen = range(0, len(requests), stride)[: params.transformers_prompts]
    baseline = GenerateBaseline(path, dtype=DTYPES[precision])
    limit, ends = params.max_new_tokens, exact.end_ids
    plain = [baseline.decode(requests[i].prompt, max_new_tokens=limit, end_ids=ends).tokens for i in chosen]
    return check_equality(
        [requests[i] for i in chosen],
        plain=plain,
        speculative=[served[i] for i in chosen],
        exact=exact,
        near_tie=params.near_tie,
        precision=precision,
        name="transformers",
        what="The server's greedy output equals that of transformers' generate, token for token",
    )
