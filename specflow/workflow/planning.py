"""What a flow would do on a store: which artifacts exist, which would be made, why, and at what cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from specflow.config.errors import InputErrors, InputProblem, Location, listing, nearest
from specflow.config.operations import OperationsParams
from specflow.stages.contract import Estimate
from specflow.workflow.commit import Recipe
from specflow.workflow.estimates import stated_estimate
from specflow.workflow.flow import Flow
from specflow.workflow.graph import Locate, Node, expand, unlocated
from specflow.workflow.history import History
from specflow.workflow.keys import content_key, key_parameters
from specflow.workflow.record import ArtifactRecord
from specflow.workflow.registry import STAGES, Registry
from specflow.workflow.retraining import resolutions
from specflow.workflow.store import ArtifactStore

State = Literal["cached", "to run", "blocked"]
DISK_MARGIN = 1.2
NO_OPERATIONS = OperationsParams(retries=0, device=None)
"""For a configuration without that section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """A node, the artifact it stands for, and what would be done about it."""

    node: Node
    recipe: Recipe
    inputs: tuple[tuple[str, str], ...]
    """``(kind, key)`` of every input."""
    state: State
    reason: str
    damage: tuple[str, ...] = ()
    """What is wrong with the artifact in the store; it is put aside before the stage runs."""
    estimate: Estimate = field(default_factory=Estimate)
    record: ArtifactRecord | None = None
    """The artifact's record where it is cached."""

    @property
    def id(self) -> str:
        return self.node.id

    @property
    def kind(self) -> str:
        return self.node.kind

    @property
    def key(self) -> str:
        return self.recipe.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Nodes in an order they can run in. With ``problems``, nothing may run."""

    flow: str
    store: ArtifactStore
    nodes: tuple[PlannedNode, ...]
    problems: tuple[InputProblem, ...] = ()
    bytes_needed: int = 0
    bytes_free: int = 0
    configuration: str = ""
    """Name of the configuration, where it has one."""
    operations: OperationsParams = NO_OPERATIONS
    keys: tuple[tuple[str, str], ...] = field(default=())
    """``(kind, key)`` of every node of the flow, also of those not selected."""

    def node(self, name: str) -> PlannedNode:
        return next(node for node in self.nodes if node.id == name)

    @property
    def to_run(self) -> tuple[PlannedNode, ...]:
        return tuple(node for node in self.nodes if node.state == "to run")


def plan(
    flow: Flow,
    config: BaseModel,
    store: ArtifactStore,
    *,
    registry: Registry = STAGES,
    locate: Locate = unlocated,
    only: Collection[str] | None = None,
    upstream: bool = False,
    verify: bool = True,
    free_bytes: Callable[[Path], int] | None = None,
    to_run: bool = True,
) -> Plan:
    """Plan a flow, or the nodes named in ``only`` (stage, entry, or node id).

    With ``upstream`` the selection includes the inputs of everything that is to run; without, a missing input is
    a problem.
    ``verify`` reads every byte of the artifacts found. ``to_run`` false: only the keys are wanted, of stages that may
    lack a parameter. Raises ``InputErrors`` for a wrong flow or configuration.
    """
    mappings = {entry.foreach for entry in flow.stages.values()}
    for resolution in resolutions(config, store, mappings=mappings):
        config = resolution.config
        nodes = expand(flow, config, registry=registry, locate=locate, to_run=to_run)
        planner = _Planner(store, registry, {node.id: node for node in nodes}, config=config, verify=verify)
        if resolution.decision is None or resolution.decision in {planner.recipe(node).key for node in nodes}:
            break
    selected = _select(nodes, only)
    if upstream:
        _add_upstream(selected, nodes, planner)
    recipes = {node.id: planner.recipe(node) for node in nodes}
    planned = [planner.planned(node) for node in nodes if node.id in selected]
    problems = _missing_inputs(planned, nodes, planner, selected, locate)
    problems += _unfit_upstream(planned, nodes, registry, locate)
    operations: OperationsParams = getattr(config, "operations", NO_OPERATIONS)
    problems += _unknown_limits(operations, nodes, registry, locate)
    needed = int(DISK_MARGIN * sum(p.estimate.bytes or 0 for p in planned if p.state == "to run"))
    free = (free_bytes or _free_bytes)(store.root)
    if needed > free:
        problems.append(_disk_problem(store.root, planned, needed, free))
        planned = [_blocked(p, "not enough disk space") if p.state == "to run" else p for p in planned]
    return Plan(
        flow=flow.name,
        store=store,
        nodes=tuple(planned),
        problems=tuple(problems),
        bytes_needed=needed,
        bytes_free=free,
        configuration=str(getattr(config, "name", "")),
        operations=operations,
        keys=tuple((recipe.kind, recipe.key) for recipe in recipes.values()),
    )


class _Planner:
    def __init__(
        self, store: ArtifactStore, registry: Registry, nodes: dict[str, Node], *, config: BaseModel, verify: bool
    ) -> None:
        self._store, self._registry, self._nodes = store, registry, nodes
        self._config, self._verify = config, verify
        self._history = History(store.records())
        self._recipes: dict[str, Recipe] = {}
        self._damage: dict[str, tuple[str, ...] | None] = {}
        self._open: set[str] = set()
        """Ids of planned nodes that will be made, or that may be, once their inputs are."""

    def recipe(self, node: Node) -> Recipe:
        if node.id not in self._recipes:
            self._recipes[node.id] = self._make_recipe(node)
        return self._recipes[node.id]

    def _make_recipe(self, node: Node) -> Recipe:
        module = self._registry.load(node.stage)
        inputs: dict[str, list[str]] = {}
        for kind, key in self.inputs(node):
            inputs.setdefault(kind, []).append(key)
        code = self._registry.code_version(node.stage)
        parameters = key_parameters(node.params, module.files(node.params))
        key = content_key(
            kind=node.kind, stage=node.stage, code_version=code, parameters=parameters, inputs=inputs, item=node.item
        )
        return Recipe(
            kind=node.kind,
            key=key,
            stage=node.stage,
            item=node.item,
            code_version=code,
            parameters=node.params.model_dump(mode="json"),
            key_parameters=parameters,
            inputs=inputs,
        )

    def inputs(self, node: Node) -> tuple[tuple[str, str], ...]:
        recipes = (self.recipe(self._nodes[need]) for need in node.needs)
        return tuple((recipe.kind, recipe.key) for recipe in recipes)

    def damage(self, node: Node) -> tuple[str, ...] | None:
        """What is wrong with the node's artifact; none if there is no artifact."""
        if node.id not in self._damage:
            self._damage[node.id] = self._find_damage(self.recipe(node))
        return self._damage[node.id]

    def _find_damage(self, recipe: Recipe) -> tuple[str, ...] | None:
        if not self._store.exists(recipe.kind, recipe.key):
            return None
        if self._verify:
            return tuple(self._store.verify_key(recipe.kind, recipe.key))
        return () if self._store.record(recipe.kind, recipe.key) else ("artifact.json is missing or unreadable",)

    def outdated(self, node: Node) -> list[str]:
        """Inputs that were made again with other content since the node's artifact was made."""
        recipe = self.recipe(node)
        return self._store.outdated(recipe.kind, recipe.key)

    def former(self, node: Node) -> str:
        """An artifact of the same stage that was made otherwise, and how; empty if there is none, or damage."""
        recipe = self.recipe(node)
        last = self._history.latest(recipe)
        if last is None or last.key == recipe.key:
            return ""
        return f"{last.kind}/{last.key[:12]} ({self._history.why(recipe)} since)"

    def usable(self, node: Node) -> bool:
        """Whether the node's artifact exists, whole, and was made from the inputs that are there now."""
        return self.damage(node) == () and not self.outdated(node)

    def planned(self, node: Node) -> PlannedNode:
        recipe = self.recipe(node)
        damage = self.damage(node)
        outdated = self.outdated(node)
        waits = [need for need in node.needs if need in self._open]
        common: dict[str, Any] = {"node": node, "recipe": recipe, "inputs": self.inputs(node)}
        if waits or not self.usable(node):
            self._open.add(node.id)
        if self.usable(node):
            record = self._store.record(recipe.kind, recipe.key)
            reason = "made and verified" if self._verify else "made"
            if waits:
                reason += f"; made again if {listing(waits)} comes out with other content"
            return PlannedNode(state="cached", reason=reason, record=record, **common)
        if damage:
            reason = f"damaged: {'; '.join(damage[:3])}"
        else:
            reason = "; ".join(outdated) or self._history.why(recipe)
        stated = stated_estimate(node, self._registry.load(node.stage), self._config)
        estimate = self._history.estimate(recipe, stated)
        return PlannedNode(state="to run", reason=reason, damage=damage or (), estimate=estimate, **common)


def _select(nodes: Sequence[Node], only: Collection[str] | None) -> set[str]:
    if only is None:
        return {node.id for node in nodes}
    valid = {name for node in nodes for name in (node.id, node.entry, node.stage)}
    unknown = [name for name in only if name not in valid]
    if unknown:
        raise InputErrors(
            [
                InputProblem(
                    location=Location(source="command line"),
                    path="",
                    message="the flow has no such stage",
                    found=name,
                    expected=listing(valid),
                    hint=nearest(name, valid),
                )
                for name in unknown
            ]
        )
    return {node.id for node in nodes if {node.id, node.entry, node.stage} & set(only)}


def _add_upstream(selected: set[str], nodes: Sequence[Node], planner: _Planner) -> None:
    """Add the inputs of what will be made, and theirs; what exists needs no inputs, made or not."""
    for node in reversed(nodes):
        if node.id in selected and not planner.usable(node):
            selected.update(node.needs)


def _unfit_upstream(
    planned: Sequence[PlannedNode], nodes: Sequence[Node], registry: Registry, locate: Locate
) -> list[InputProblem]:
    """What stages that are to run find wrong with the parameters of those they depend on; each problem once."""
    by_id = {node.id: node for node in nodes}
    found: dict[str, InputProblem] = {}
    for candidate in planned:
        check = getattr(registry.load(candidate.node.stage), "check_upstream", None)
        if check is None or candidate.state == "cached":
            continue
        own = {candidate.node.stage: candidate.node.params}
        above = {by_id[name].stage: by_id[name].params for name in _ancestors(candidate.id, by_id)}
        for problem in check(above | own):
            found[problem.where] = InputProblem(
                location=locate(problem.where),
                path=problem.where,
                message=f"stage {candidate.node.stage!r} cannot run with this",
                found=problem.found,
                expected=problem.expected,
                hint=problem.hint,
            )
    return list(found.values())


def _unknown_limits(
    operations: OperationsParams, nodes: Sequence[Node], registry: Registry, locate: Locate
) -> list[InputProblem]:
    """Time limits of what does not exist; a stage that another flow has is no problem."""
    valid = {*registry.names, *(node.id for node in nodes)}
    return [
        InputProblem(
            location=locate(f"operations.time_limits.{name}"),
            path=f"operations.time_limits.{name}",
            message="no such stage or node",
            found=name,
            expected=listing(valid),
            hint=nearest(name, valid),
        )
        for name in operations.time_limits
        if name not in valid and name.partition(":")[0] not in registry.names
    ]


def _ancestors(name: str, by_id: Mapping[str, Node]) -> set[str]:
    above = {need for need in by_id[name].needs if need in by_id}
    return above.union(*(_ancestors(need, by_id) for need in above))


def _missing_inputs(
    planned: list[PlannedNode], nodes: Iterable[Node], planner: _Planner, selected: set[str], locate: Locate
) -> list[InputProblem]:
    """Problems for inputs that are neither made nor selected; their readers become blocked."""
    by_id = {node.id: node for node in nodes}
    problems: dict[str, InputProblem] = {}
    for position, candidate in enumerate(planned):
        halted = [p.id for p in planned[:position] if p.state == "blocked" and p.id in candidate.node.needs]
        if halted and candidate.state == "to run":
            planned[position] = _blocked(candidate, f"needs {listing(halted)}")
            continue
        absent = [need for need in candidate.node.needs if need not in selected and not planner.usable(by_id[need])]
        if candidate.state != "to run" or not absent:
            continue
        planned[position] = _blocked(candidate, f"needs {listing(absent)}")
        for need in absent:
            node = by_id[need]
            former = planner.former(node)
            found = former or "nothing"
            problems[need] = InputProblem(
                location=locate(node.section) if former else Location(source="artifact store"),
                path=node.section if former else "",
                message=f"stage {candidate.node.stage!r} reads {node.kind!r} of {need!r}, which has not been made"
                + (" from what is there now" if former else ""),
                found="damaged" if planner.damage(node) else "; ".join(planner.outdated(node)) or found,
                expected=f"{node.kind}/{planner.recipe(node).key[:12]}",
                hint=f"run `specflow {node.stage}` first, or add --upstream",
            )
    return list(problems.values())


def _blocked(planned: PlannedNode, reason: str) -> PlannedNode:
    return replace(planned, state="blocked", reason=reason)


def _free_bytes(path: Path) -> int:
    existing = next(p for p in (path, *path.parents) if p.exists())
    return shutil.disk_usage(existing).free


def _disk_problem(root: Path, planned: Sequence[PlannedNode], needed: int, free: int) -> InputProblem:
    parts = {p.id: p.estimate.bytes for p in planned if p.state == "to run" and p.estimate.bytes}
    largest = sorted(parts, key=lambda name: -(parts[name] or 0))[:3]
    shares = ", ".join(f"{name} {(parts[name] or 0) / 1e9:.2f} GB" for name in largest)
    return InputProblem(
        location=Location(source=str(root)),
        path="",
        message="the disk is too small for what would be made",
        found=f"{free / 1e9:.2f} GB free",
        expected=f"{needed / 1e9:.2f} GB ({DISK_MARGIN} x the estimates; {shares})",
        hint="free space, run `specflow gc`, or set `store` to a larger disk",
    )
