"""``calibrate``: a drafter's confidence against what the target accepts; temperatures that make it true."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specflow.config.calibrate import CalibrateParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem, StageError

NAME = "calibrate"
KIND = "calibration"
INPUTS: Mapping[str, Arity] = {"target": Arity.ONE, "drafter": Arity.ONE, "tokens": Arity.ONE}
STS_FILE, RECORDS_FILE, REPORT_FILE, PLOT_FILE = "sts.json", "records.jsonl", "calibration.json", "reliability.png"
HOW_OPTIONAL = "set calibrate.optional to true to pass over drafters without confidence"


def check(params: CalibrateParams) -> Iterable[Problem]:
    if params.records is not None and not params.record_files():
        yield Problem(where="records", found=str(params.records), expected="a file, or a directory with .pt files")


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    """Told before anything is trained; methods that cannot say are found out in ``run``."""
    drafter, own = sections.get("train"), sections.get(NAME)
    if drafter is not None and own is not None and drafter.gives_confidence() is False and not own.optional:
        yield Problem(
            where="calibrate.optional",
            found=f"false, and a drafter of method {drafter.method!r}",
            expected="drafters whose proposals come with a confidence",
            hint=HOW_OPTIONAL,
        )


def files(params: CalibrateParams) -> Iterable[Path]:
    return params.record_files()


def estimate(params: CalibrateParams) -> Estimate:
    if params.records is not None:
        return Estimate(bytes=2_000_000, seconds=20.0)
    return Estimate(bytes=2_000_000, note=f"every held-out prompt decoded once, {params.max_new_tokens} tokens each")


def run(inputs: Inputs, params: CalibrateParams, context: Context) -> Metrics:
    """Payload: ``sts.json`` (as SGLang reads it), ``records.jsonl``, ``calibration.json``, ``reliability.png``.

    Raises ``StageError`` on records that are unfit, and on a drafter without confidence unless ``optional``; with
    it, the payload is a ``calibration.json`` that says so.
    """
    from specflow.calibration.records import RecordsError
    from specflow.drafters.loading import read_manifest
    from specflow.serving.confidence_records import NoConfidence

    manifest = read_manifest(inputs.one("drafter").path)
    name = inputs.one("drafter").item or inputs.one("drafter").key[:12]
    try:
        records, requests, conditions = _records(inputs, params, context)
        if records.num_proposals != manifest.num_proposals:
            raise RecordsError(
                [f"records of {records.num_proposals} proposals; drafter {name} makes {manifest.num_proposals}"]
            )
        return _calibrated(records, requests, params, context, conditions=conditions)
    except NoConfidence:
        return _without_confidence(name, manifest.method, params, context)
    except RecordsError as error:
        raise StageError("these records must not be calibrated on:\n" + "\n".join(error.problems)) from error


def _without_confidence(name: str, method: str, params: CalibrateParams, context: Context) -> Metrics:
    reason = f"drafter {name} (method {method}) has no confidence: there is nothing to calibrate"
    if not params.optional:
        raise StageError(f"{reason}; {HOW_OPTIONAL}")
    context.log(f"{reason}; the calibration is empty")
    _write(context.output / REPORT_FILE, {"format": 1, "calibrated": False, "reason": reason})
    return {"calibrated": False, "reason": reason}


def _records(inputs: Inputs, params: CalibrateParams, context: Context) -> tuple[Any, list[str], dict[str, Any]]:
    """Records, names of their requests, and how they came about."""
    from specflow.calibration.round_lines import read_rounds
    from specflow.calibration.sglang_records import read_shards, shard_paths

    if params.records is None:
        return _decoded(inputs, params, context)
    collected = {"collected": params.records.name}
    if params.records.suffix == ".jsonl":
        records = read_rounds(params.records)
    else:
        records = read_shards(shard_paths(params.records))
    return records, [f"{i}" for i in range(int(records.request_N.max()) + 1)], collected


def _decoded(inputs: Inputs, params: CalibrateParams, context: Context) -> tuple[Any, list[str], dict[str, Any]]:
    from specflow.data.documents import iterate_documents
    from specflow.decoding.sampling import sampling_of
    from specflow.decoding.speculative import decode_speculative
    from specflow.drafters.base import Confident
    from specflow.drafters.loading import load_drafter
    from specflow.features.comparison import Use
    from specflow.serving.confidence_records import NoConfidence, collect_rounds
    from specflow.serving.requests import heldout_requests, requests_hash
    from specflow.stages.fitting import RETRAIN, drafter_side, require_fit, target_side
    from specflow.stages.machine import resolved
    from specflow.targets.target import Target

    path = inputs.one("target").path
    requests = heldout_requests(iterate_documents(inputs.one("tokens").path), per_kind=params.prompts_per_kind)
    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    require_fit(
        Use.DRAFTS_FOR,
        drafter_side(inputs.one("drafter")),
        target_side(inputs.one("target"), precision=precision),
        context,
        remedy=RETRAIN,
    )
    target = Target.load(path, precision=precision, threads=threads)
    proposer = load_drafter(inputs.one("drafter").path, target)
    if not isinstance(proposer, Confident):
        raise NoConfidence
    decode = partial(decode_speculative, target, proposer, max_new_tokens=params.max_new_tokens)
    with context.progress("decoding held-out prompts", total=len(requests), unit="prompts") as progress:
        records, names = collect_rounds(
            requests,
            lambda prompt: decode(prompt, sampling=sampling_of(params.sampling, prompt)),
            kept=context.scratch / "rounds.jsonl",
            on_request=progress.advance,
        )
    conditions = {
        "engine": "embedded",
        "precision": target.precision,
        "sampling": params.sampling.model_dump(),
        "dataset_sha256": requests_hash(requests),
        "prompts": len(requests),
        "max_new_tokens": params.max_new_tokens,
    }
    return records, names, conditions


def _calibrated(
    records: Any, requests: Sequence[str], params: CalibrateParams, context: Context, *, conditions: Mapping[str, Any]
) -> Metrics:
    from specflow.calibration.report import calibration_report, calibration_table
    from specflow.calibration.round_lines import write_rounds
    from specflow.calibration.sglang_sts import StsTemperatures, write_sts
    from specflow.calibration.sts import FitRules, fit_sts
    from specflow.reporting.reliability import write_reliability

    rules = FitRules(
        validation_share=params.validation_share,
        min_events=params.min_events,
        bootstraps=params.bootstraps,
        seed=params.seed,
    )
    fitted = fit_sts(records, rules)
    report = calibration_report(fitted, rules)
    positions = report["positions"]
    found = StsTemperatures(
        temperatures=fitted.temperatures,
        dataset=str(conditions.get("dataset_sha256", conditions.get("collected", ""))),
        num_samples=records.rounds,
        ece_before=tuple(row["before"]["ece"] for row in positions),
        ece_after=tuple(row["after"]["ece"] for row in positions),
    )
    write_sts(context.output / STS_FILE, found)
    write_rounds(context.output / RECORDS_FILE, records, requests)
    _write(context.output / REPORT_FILE, {"format": 1, "calibrated": True, "conditions": dict(conditions), **report})
    write_reliability(positions, context.output / PLOT_FILE)
    context.log(calibration_table(positions))
    changed = sum(t != 1.0 for t in fitted.temperatures)
    context.log(f"{changed} of {len(positions)} temperatures differ from 1, from {records.rounds} rounds")
    return {
        "calibrated": True,
        "rounds": records.rounds,
        "temperatures": list(fitted.temperatures),
        "ece_before": list(found.ece_before),
        "ece_after": list(found.ece_after),
    }


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
