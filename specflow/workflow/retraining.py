"""What a configuration leaves to the store: the slices of a growing source, and which drafter is promoted."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from specflow.config.drafter import DrafterParams
from specflow.config.gate import PROMOTED, IncumbentParams
from specflow.config.regenerate import RegenerateParams
from specflow.config.root import Config
from specflow.workflow.promotion import DrafterRegistry, Event
from specflow.workflow.slices import sliced
from specflow.workflow.store import ArtifactStore


class ResolvedConfig(Config):
    """A configuration with what a flow may also ask for, none of which is ever written in a file."""

    slices: dict[str, RegenerateParams] = Field(default={}, description="What `regenerate` does for each slice.")
    incumbents: dict[str, IncumbentParams] = Field(default={}, description="The drafter to beat; none: plain decoding.")


@dataclass(frozen=True, slots=True)
class Resolution:
    """``decision``: key that the flow's decision must have for this resolution to be taken; none: it always is."""

    config: BaseModel
    decision: str | None = None


def resolutions(config: BaseModel, store: ArtifactStore, *, mappings: Collection[str | None]) -> Iterator[Resolution]:
    """What the configuration stands for; the first that fits is meant, and the last one always fits.

    ``mappings``: what the flow runs stages for each of; slices are cut only for a flow that has some.

    A drafter is trained from the promoted one, and compared with it. Once it is promoted itself, the same flow on the
    same data must find that everything is made, and not start again from its own result. So the promoted drafter is
    first taken to be the one before it, which holds if the flow then comes to the decision that promoted it.
    """
    if not isinstance(config, Config):
        yield Resolution(config)
        return
    slices = sliced(config.retrain, config.regenerate, store.root) if "slices" in mappings else {}
    registry = DrafterRegistry(store)
    promoted = registry.promoted(config.gate.service)
    if promoted and promoted.decision:
        before = registry.before(promoted)
        if before is None or store.exists("drafter", before.drafter):
            yield Resolution(_resolved(config, store, slices, before), promoted.decision)
    yield Resolution(_resolved(config, store, slices, promoted))


def _resolved(
    config: Config, store: ArtifactStore, slices: dict[str, RegenerateParams], promoted: Event | None
) -> ResolvedConfig:
    path = store.path("drafter", promoted.drafter) if promoted else None
    beaten = config.incumbent.drafter or path
    values = {name: getattr(config, name) for name in type(config).model_fields}
    values["drafters"] = {name: _started(drafter, path) for name, drafter in config.drafters.items()}
    confident = [drafter.gives_confidence() for drafter in config.drafters.values()]
    if config.retrain.calibrate is None:
        values["retrain"] = config.retrain.model_copy(update={"calibrate": True in confident})
        if True in confident and False in confident:
            values["calibrate"] = config.calibrate.model_copy(update={"optional": True})
    return ResolvedConfig.model_construct(
        **values, slices=slices, incumbents={PROMOTED: IncumbentParams(drafter=beaten)} if beaten else {}
    )


def _started(drafter: DrafterParams, path: Path | None) -> DrafterParams:
    """With the promoted drafter to start from, where that is asked for."""
    if drafter.train.init_from != PROMOTED:
        return drafter
    train = drafter.train.model_copy(update={"init_from": str(path) if path else None})
    return drafter.model_copy(update={"train": train})
