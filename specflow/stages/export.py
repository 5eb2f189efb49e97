"""``export``: the trained drafter as the directory a serving engine loads, linted before it exists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specflow.config.export import ExportParams
from specflow.stages.contract import Arity, Artifact, Context, Estimate, Inputs, Metrics, Problem, StageError

NAME = "export"
KIND = "export"
INPUTS: Mapping[str, Arity] = {
    "target": Arity.ONE,
    "drafter": Arity.ONE,
    "calibration": Arity.OPTIONAL,
    "costs": Arity.OPTIONAL,
    "benchmark": Arity.OPTIONAL,
}


def check(params: ExportParams) -> Iterable[Problem]:
    return ()


def files(params: ExportParams) -> Iterable[Path]:
    return ()


def estimate(params: ExportParams) -> Estimate:
    return Estimate(seconds=5.0, note=f"the drafter's tensors in {params.dtype}")


def run(inputs: Inputs, params: ExportParams, context: Context) -> Metrics:
    """Payload: ``draft/``, ``launch.json``, ``lint.json``, and a directory for each further layout.

    ``draft/`` is what is copied to a server; it holds the feature contract and the manifest too, by which it can be
    linted and served anywhere, the temperatures and costs of a scheduler where there are any, and a model card.
    Raises ``StageError`` where the drafter is not this target's, or listing every lint finding; nothing is exported
    then.
    """
    from safetensors.torch import load_file

    from specflow.drafters.loading import read_manifest
    from specflow.features.comparison import Use
    from specflow.serving.draft import MANIFEST, read_draft
    from specflow.serving.draft_directory import text_config
    from specflow.serving.launch import launch_record
    from specflow.serving.layouts.common import stretched, write_layout
    from specflow.serving.layouts.further import further_layout
    from specflow.serving.layouts.registry import get_layout
    from specflow.serving.layouts.state_drafters import TREE
    from specflow.serving.lint import HASHES, lint
    from specflow.serving.model_card import CARD, model_card
    from specflow.serving.schedule_files import SECTION
    from specflow.stages.fitting import EXPORTED_CONTRACT, RETRAIN, drafter_side, require_fit, target_side

    target, drafter = inputs.one("target"), inputs.one("drafter")
    require_fit(Use.DRAFTS_FOR, drafter_side(drafter), target_side(target), context, remedy=RETRAIN)
    geometry, manifest = _json(drafter.file("drafter/config.json")), _json(drafter.file("drafter/manifest.json"))
    target_config = text_config(target.path)
    trained = load_file(str(drafter.file("drafter/model.safetensors")))
    draft = context.output / "draft"
    own: dict[str, Any] = {"engine": params.engine, "dtype": params.dtype, "drafter_key": drafter.key}
    if params.tree is not None and (params.tree_drafters is None or context.item in params.tree_drafters):
        own[TREE] = params.tree.model_dump()
    try:
        if params.yarn_factor is not None:
            own_positions = int(target_config["max_position_embeddings"])
            geometry = stretched(geometry, positions=own_positions, factor=params.yarn_factor)
            target_config["max_position_embeddings"] = geometry["max_position_embeddings"]
            manifest["stretched"] = params.yarn_factor
        layout = get_layout(str(manifest.get("method")))
        config = layout.layout_config(geometry, manifest, target_config, dtype=params.dtype)
        write_layout(draft, config, layout.export_tensors(trained, dtype=params.dtype))
        manifest[SECTION] = _schedule(inputs, draft, manifest)
        own["geometry"] = geometry
        launch = launch_record({**manifest, **own}, engine=params.engine, dtype=params.dtype)
        for name in params.also:
            further_layout(name).write(
                context.output / name, geometry, manifest, target_config, trained, dtype=params.dtype
            )
    except (KeyError, ValueError) as error:
        raise StageError(f"drafter {drafter.key[:12]} cannot be exported for {params.engine}: {error}") from error
    loaded = read_draft(
        draft,
        trained=trained,
        geometry=geometry,
        manifest=manifest,
        target=target_config,
        dtype=params.dtype,
        token_ids=_token_ids(target.path),
    )
    report = lint(loaded, engine=params.engine)
    if report.findings:
        listed = "\n".join(f"  {finding}" for finding in report.findings)
        raise StageError(
            f"the export of drafter {drafter.key[:12]} for {params.engine} has {len(report.findings)} problems:\n"
            f"{listed}\nA server would load it without an error and accept few or none of its proposals."
        )
    _transformers_reads(draft, {"rope_theta": config["rope_theta"], **layout.read_back(config)})
    read_manifest(drafter.path).feature_contract.write(context.output / EXPORTED_CONTRACT)
    _write(context.output / "lint.json", report.as_json())
    _write(context.output / "launch.json", launch)
    hashes = {name: entry["sha256"] for name, entry in report.tensors.items()}
    whole = {**manifest, **own, HASHES: hashes}
    _write(draft / MANIFEST, whole)
    card = model_card(
        drafter.item or drafter.key[:12], whole, launch, measured=_measured(inputs), checks=len(report.checks)
    )
    (draft / CARD).write_text(card, encoding="utf-8")
    context.log(f"{len(report.tensors)} tensors in {params.dtype}, {len(report.checks)} checks passed")
    context.log(f"serve it with: {launch['command']}")
    size = (draft / "model.safetensors").stat().st_size
    return {"tensors": len(report.tensors), "bytes": size, "lint_checks": len(report.checks), "dtype": params.dtype}


def _schedule(inputs: Inputs, draft: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Temperatures and costs, where there are any; a drafter without confidence has none."""
    from specflow.serving.schedule_files import conditions_of, copy_schedule

    calibration, costs = inputs.optional("calibration"), inputs.optional("costs")
    temperatures = calibration.path / "sts.json" if calibration else None
    if temperatures is None or not temperatures.exists():
        return {}
    return copy_schedule(
        draft,
        num_proposals=int(manifest["num_proposals"]),
        temperatures=temperatures,
        costs=_cost_table(costs) if costs else None,
        conditions=conditions_of(costs.file("costs.json")) if costs else {},
    )


def _cost_table(costs: Artifact) -> Path:
    """By requests and rows; by rows alone where that is all that was measured."""
    additive = costs.path / "sps_additive.json"
    return additive if additive.exists() else costs.file("sps.json")


def _measured(inputs: Inputs) -> dict[str, Any] | None:
    benchmark = inputs.optional("benchmark")
    return _json(benchmark.file("result.json")) if benchmark else None


def _token_ids(path: Path) -> dict[str, int]:
    from transformers import AutoTokenizer

    found: dict[str, int] = AutoTokenizer.from_pretrained(path).get_vocab()
    return found


def _transformers_reads(draft: Path, expected: Mapping[str, Any]) -> None:
    """Engines read the file through transformers: what it makes of the keys must be what was written."""
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained(str(draft))
    found = {key: getattr(read, key, None) for key in expected}
    found["rope_theta"] = (read.rope_parameters or {}).get("rope_theta")
    wrong = [f"{key}: expected {want!r}, found {found[key]!r}" for key, want in expected.items() if found[key] != want]
    if wrong:
        raise StageError("transformers reads draft/config.json differently: " + "; ".join(wrong))


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
