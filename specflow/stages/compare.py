"""``compare``: plain decoding and every drafter in turn, in one run, ranked by tokens per second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specflow.config.compare import CompareParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError

NAME = "compare"
KIND = "comparison"
INPUTS: Mapping[str, Arity] = {
    "target": Arity.ONE,
    "drafter": Arity.MANY,
    "tokens": Arity.ONE,
    "calibration": Arity.MANY,
    "costs": Arity.OPTIONAL,
}


def check(params: CompareParams) -> Iterable[Problem]:
    return ()


def check_upstream(sections: Mapping[str, Any]) -> Iterable[Problem]:
    if sections[NAME].schedulers and "profile" not in sections:
        yield Problem(
            where="compare.schedulers",
            found="a scheduler, in a flow without calibrate and profile before compare",
            expected="a flow with both: a scheduler goes by calibrated confidence and measured costs",
            hint="use the flow `compare-drafters`",
        )


def files(params: CompareParams) -> Iterable[Path]:
    return ()


def estimate(params: CompareParams) -> Estimate:
    times = params.repeats * len(params.concurrency)
    return Estimate(note=f"every held-out prompt decoded {times} times by each drafter and once more without any")


def run(inputs: Inputs, params: CompareParams, context: Context) -> Metrics:
    """Payload: ``comparison.json`` and ``comparison.png``; logs the ranking.

    Raises ``StageError`` where a drafter is not this target's, or two have one name.
    """
    from specflow.data.documents import iterate_documents
    from specflow.reporting.ranking import ranking, ranking_table, sums
    from specflow.reporting.ranking_plot import write_ranking_plot
    from specflow.serving.requests import heldout_requests
    from specflow.serving.waves import measure_waves, waves_of
    from specflow.stages.machine import resolved
    from specflow.targets.target import Target

    path = inputs.one("target").path
    requests = heldout_requests(iterate_documents(inputs.one("tokens").path), per_kind=params.prompts_per_kind)
    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    _same_contracts(inputs, context, precision=precision)
    target = Target.load(path, precision=precision, threads=threads)
    modes = _modes(inputs, params, target, context, prompt=requests[0].prompt)
    for decode in modes.values():
        decode([requests[0].prompt], 1)
    steps = sum(len(waves_of(requests, c)) for c in params.concurrency) * params.repeats * len(modes)
    waves = []
    with context.progress("all drafters and none, in turn", total=steps, unit="waves") as progress:
        for concurrency in params.concurrency:
            waves += measure_waves(
                requests,
                modes,
                concurrency=concurrency,
                repeats=params.repeats,
                kept=context.scratch / f"waves-{concurrency}.jsonl",
                on_wave=progress.advance,
            )
    rows = ranking(waves)
    record = {**_circumstances(inputs, params, target=target, requests=requests), "rows": rows, "waves": sums(waves)}
    (context.output / "comparison.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", "utf-8")
    write_ranking_plot(rows, context.output / "comparison.png")
    context.log(ranking_table(rows))
    last = [row for row in rows if row["concurrency"] == params.concurrency[-1]]
    return {
        "best": last[0]["mode"],
        "concurrency": params.concurrency[-1],
        "tokens_per_second": {row["mode"]: row["tokens_per_second"] for row in last},
        "tau": {row["mode"]: row["tau"] for row in last if row["tau"] is not None},
    }


def _modes(
    inputs: Inputs, params: CompareParams, target: Any, context: Context, *, prompt: Sequence[int]
) -> dict[str, Any]:
    """How each mode decodes a wave, plain first."""
    from specflow.config.scheduler import SchedulerParams
    from specflow.decoding.plain import decode_plain
    from specflow.decoding.sampling import sampling_of
    from specflow.decoding.speculative import decode_speculative_batch
    from specflow.drafters.loading import load_drafter
    from specflow.reporting.ranking import PLAIN
    from specflow.stages.schedulers import scheduler_of
    from specflow.stages.trees import shape_of

    def given(prompts: Sequence[Sequence[int]], concurrency: int) -> dict[str, Any]:
        sampling = [sampling_of(params.sampling, prompt) for prompt in prompts]
        return {"max_new_tokens": params.max_new_tokens, "sampling": sampling, "batch_size": concurrency}

    def plain(prompts: Sequence[Sequence[int]], concurrency: int) -> Any:
        return decode_plain(target, prompts, **given(prompts, concurrency))

    def drafting(proposer: Any, tree: Any = None, scheduler: Any = None) -> Any:
        return lambda prompts, concurrency: decode_speculative_batch(
            target, proposer, prompts, tree=tree, scheduler=scheduler, **given(prompts, concurrency)
        )

    names = [drafter.item or drafter.key[:12] for drafter in inputs.all("drafter")]
    if twice := sorted({name for name in (*names, PLAIN) if [*names, PLAIN].count(name) > 1}):
        raise StageError(f"two modes are named {', '.join(twice)}: give every drafter its own name, none {PLAIN!r}")
    for field, named in (("trees", params.trees), ("schedulers", params.schedulers)):
        if unknown := sorted(set(named) - set(names)):
            raise StageError(f"compare.{field} names {', '.join(unknown)}; the drafters here are {', '.join(names)}")
    modes: dict[str, Any] = {PLAIN: plain}
    for name, drafter in zip(names, inputs.all("drafter"), strict=True):
        proposer = load_drafter(drafter.path, target)
        modes[name] = drafting(proposer)
        if name in params.trees:
            modes[f"{name}+tree"] = drafting(proposer, shape_of(params.trees[name], proposer))
        for mode in params.schedulers.get(name, ()):
            scheduler = scheduler_of(
                SchedulerParams(mode=mode),
                name,
                target=target,
                proposer=proposer,
                prompt=prompt,
                calibration=_calibration_of(drafter, inputs),
                costs=inputs.optional("costs"),
                context=context,
            )
            modes[f"{name}+{mode}"] = drafting(proposer, scheduler=scheduler)
    return modes


def _calibration_of(drafter: Artifact, inputs: Inputs) -> Artifact | None:
    """By the key of the drafter among its inputs: some stores map kind to key, others key to kind."""
    made = inputs.all("calibration")
    return next((a for a in made if drafter.key in {*a.inputs.keys(), *a.inputs.values()}), None)


def _same_contracts(inputs: Inputs, context: Context, *, precision: str) -> None:
    from specflow.features.comparison import Use
    from specflow.stages.fitting import RETRAIN, drafter_side, require_fit, target_side

    target = target_side(inputs.one("target"), precision=precision)
    for drafter in inputs.all("drafter"):
        require_fit(Use.DRAFTS_FOR, drafter_side(drafter), target, context, remedy=RETRAIN)


def _circumstances(inputs: Inputs, params: CompareParams, *, target: Any, requests: Sequence[Any]) -> dict[str, Any]:
    """What a reader must know to compare the figures with others."""
    from specflow.decoding.metrics import TAU_CONVENTION
    from specflow.reporting.ranking import CONVENTION
    from specflow.serving.machine import hardware, versions
    from specflow.serving.requests import requests_hash

    return {
        "format": 1,
        "conventions": {"tau": TAU_CONVENTION, "tokens_per_second": CONVENTION},
        "sampling": params.sampling.model_dump(),
        "dataset": {"sha256": requests_hash(requests), "prompts": len(requests), "repeats": params.repeats},
        "max_new_tokens": params.max_new_tokens,
        "engine": {"name": "embedded", "precision": target.precision, "threads": target.threads},
        "drafters": {drafter.item or drafter.key[:12]: drafter.key for drafter in inputs.all("drafter")},
        "hardware": hardware(threads=target.threads),
        "versions": versions(),
    }
