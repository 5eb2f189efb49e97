"""``features repair``: damaged shards of a features artifact, captured again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specflow.cli import options
from specflow.cli.group import FAILED
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input, open_store, open_work
from specflow.config import resources
from specflow.workflow.repair import KIND, NotRepairable, Repair, repair_features
from specflow.workflow.store import ArtifactNotFound, ArtifactStore

What = Annotated[
    str,
    typer.Argument(metavar="CONFIG|ARTIFACT", help="A configuration, or the start of the key of a features artifact."),
]


def repair(
    what: What,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Capture damaged shards again, and only these.

    Finds the files that are not as recorded, captures their shards with the recorded parameters and inputs, and puts
    them in place if every byte is the recorded one. Repair before the next run: a run that finds damage moves the
    whole artifact to .damaged and captures all of it again, and what is there is not repaired.
    Exit code 0: nothing is damaged any more; 1: not repairable; 2: no such artifact.
    """
    found, key = _find(what, flow, settings or [], store)
    log = console(stderr=True)
    try:
        done = repair_features(found, key, log=lambda line: log.print(line, markup=False, soft_wrap=True))
    except NotRepairable as error:
        if as_json:
            print_json({"artifact": f"{KIND}/{key}", "repaired": False, "error": str(error)})
        log.print(f"error: not repaired: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(FAILED) from error
    if as_json:
        answer = {"repaired": bool(done.damage), "damage": dict(done.damage), "shards": list(done.shards)}
        print_json({"artifact": f"{KIND}/{key}", **answer})
    else:
        console().print(_summary(f"{KIND}/{key[:12]}", done), markup=False, soft_wrap=True)


def _find(what: str, flow: str, settings: list[str], store: Path | None) -> tuple[ArtifactStore, str]:
    """The store and the key; raises ``InputErrors``."""
    if Path(what).suffix in (".yaml", ".yml") or Path(what).is_file() or what in resources.names("configs"):
        work = open_work(flow, what, settings=settings, store=store)
        keys = [key for kind, key in work.plan(verify=False).keys if kind == KIND]
        if not keys or not work.store.exists(KIND, keys[0]):
            message = f"no features of this configuration are in {work.store.root}"
            raise bad_input(what, message, "features that `specflow capture` has made")
        return work.store, keys[0]
    if settings:
        raise bad_input("--set", "changes a configuration", "a configuration in place of an artifact")
    found = open_store(None, store)
    kind, _, start = what.rpartition("/")
    matches = [key for k, key in found.pairs() if k == KIND and key.startswith(start) and kind in ("", KIND)]
    if len(matches) == 1:  # also one whose record cannot be read: that is damage, and no wrong name
        return found, matches[0]
    try:
        artifact = found.resolve(what if kind else f"{KIND}/{start}")
    except ArtifactNotFound as error:
        raise bad_input(what, str(error), "a configuration, or the start of a key of kind features") from error
    raise bad_input(what, f"is an artifact of kind {artifact.kind}", f"one of kind {KIND}")


def _summary(name: str, done: Repair) -> str:
    if not done.damage:
        return f"{name}: every byte is as recorded"
    again = f"captured again: {', '.join(done.shards)}" if done.shards else "no shard was damaged"
    return f"{name}: {len(done.damage)} damaged files repaired, {again}"


def register(group: typer.Typer) -> None:
    group.command()(repair)
