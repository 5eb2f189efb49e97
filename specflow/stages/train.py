"""``train``: features in, a trained drafter out, by whatever method the drafter's section names."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specflow.config.drafter import DrafterParams
from specflow.stages.contract import Arity, Context, Estimate, Inputs, Metrics, Problem
from specflow.stages.train_job import run_job
from specflow.stages.train_options import bring_state, check_options, leave_state, warm_start_files
from specflow.stages.train_prepare import prepare

NAME = "train"
KIND = "drafter"
INPUTS = {"target": Arity.ONE, "features": Arity.ONE}

SECONDS_PER_ROW = 1.8e-3
"""Of one block row in a step: a target of 135 M parameters, two draft layers, two cores without bf16 units."""
USUAL_ROWS, USUAL_LAYERS = 8, 2
"""Where a method has no such parameter."""


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
    from specflow.stages.whole_drafter import take_whole

    if params.train.init_take == "whole":
        return take_whole(inputs, params, context)
    before = torch.get_num_threads()
    threads = resolved_threads(context.scratch, params.train.threads)
    torch.set_num_threads(threads)
    try:
        return _run(inputs, params, context, threads=threads)
    finally:
        torch.set_num_threads(before)


def _run(inputs: Inputs, params: DrafterParams, context: Context, *, threads: int) -> Metrics:
    from specflow.drafters.loading import Manifest, save_drafter
    from specflow.drafters.target_weights import TargetWeights
    from specflow.training.recording import CURVE, LOGS
    from specflow.training.tensor_file import read_tensors
    from specflow.training.worker import facts_of

    ready = prepare(inputs, params, context, threads=threads)
    job, method = ready.job, ready.method
    bring_state(params.train, Path(job.scratch))
    run_job(job, params.train, context, documents=ready.documents)
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
