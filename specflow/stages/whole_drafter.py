"""``train.init_take: whole``: a drafter that was made elsewhere, or before, in the place of one that is trained."""

from __future__ import annotations

from pathlib import Path

from specflow.config.drafter import DrafterParams
from specflow.stages.contract import Artifact, Context, Inputs, Metrics, StageError


def take_whole(inputs: Inputs, params: DrafterParams, context: Context) -> Metrics:
    """Payload: ``drafter/`` as it is in ``train.init_from``.

    Raises ``StageError`` where it is of another method or for another target, or reads layers that were not captured.
    """
    from specflow.drafters.loading import load_network, read_manifest, save_drafter
    from specflow.features.comparison import Use
    from specflow.stages.fitting import RETRAIN, drafter_side, features_side, require_fit, target_side

    assert params.train.init_from is not None
    place = Path(params.train.init_from)
    try:
        manifest, network = read_manifest(place), load_network(place)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StageError(f"{place}: expected a drafter of ours; `specflow import` makes one; found {error}") from error
    if manifest.method != params.method:
        raise StageError(f"{place}: expected a drafter of method {params.method!r}, found {manifest.method!r}")
    side = drafter_side(Artifact(kind="drafter", key=place.name, path=place))
    require_fit(Use.DRAFTS_FOR, side, target_side(inputs.one("target")), context, remedy=RETRAIN)
    features = features_side(inputs.one("features"))
    missing = sorted(set(manifest.layer_ids) - set(features.values["layer_ids"]))
    if missing:
        raise StageError(
            f"drafter {place.name} reads layers {missing}, which were not captured: expected capture.layer_ids to have "
            f"{list(manifest.layer_ids)}, found {list(features.values['layer_ids'])}"
        )
    save_drafter(context.output / "drafter", network, manifest)
    context.log(f"taken as it is from {place.name}: nothing is trained")
    return {"taken": place.name, "parameters": sum(p.numel() for p in network.parameters())}
