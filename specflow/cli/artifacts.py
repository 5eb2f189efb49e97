"""``status``, ``show`` and ``gc``: what is in the artifact store."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specflow.cli import options, views
from specflow.cli.output import bytes_text, console, duration_text, print_json
from specflow.cli.work import bad_input, open_store, open_work
from specflow.config import resources
from specflow.features.location import StorageError
from specflow.stages.contract import StageError
from specflow.workflow.collection import Removed, collect_garbage, with_lineage
from specflow.workflow.store import ArtifactNotFound, ArtifactStore

OptionalConfig = Annotated[str | None, options.CONFIG]
ManyConfigs = Annotated[list[str], options.CONFIG]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def status(
    config: OptionalConfig = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what exists and what would run.

    Without a configuration, only what is in the store.
    """
    if config is None:
        if settings:
            raise bad_input("--set", "needs a configuration", "--config FILE beside it")
        records = (found := open_store(None, store)).records()
        if as_json:
            print_json({"store": str(found.root), "artifacts": [views.record_json(record) for record in records]})
            return
        out = console()
        out.print(views.store_line(found, records), markup=False, soft_wrap=True)
        if records:
            out.print(views.artifact_table(records))
        return
    work = open_work(flow, config, settings=settings or (), store=store)
    planned = work.plan(verify=False)
    records = work.store.records()
    used = with_lineage(work.store, planned.keys)
    if as_json:
        artifacts = [{**views.record_json(r), "used": (r.kind, r.key) in used} for r in records]
        print_json({**views.plan_json(planned), "artifacts": artifacts})
        return
    out = console()
    out.print(views.store_line(work.store, records), markup=False, soft_wrap=True)
    if records:
        out.print(views.artifact_table(records, used=lambda r: (r.kind, r.key) in used))
        out.print()
    out.print(views.plan_tree(planned))
    out.print(views.plan_summary(planned))


def show(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Start of a key, or kind/start of a key.")],
    config: OptionalConfig = None,
    store: options.StoreOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare the checksums.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show an artifact: lineage, metrics, parameters, files."""
    found = open_store(config, store)
    try:
        match = found.resolve(artifact)
    except ArtifactNotFound as error:
        raise bad_input(artifact, str(error), "the start of a key as `specflow status` shows it") from error
    record = found.record(match.kind, match.key)
    if record is None:
        raise bad_input(artifact, "the artifact vanished while it was read", "an artifact that exists")
    damage = found.verify(match) if verify else []
    if as_json:
        extra = {"path": str(match.path), "damage": damage} if verify else {"path": str(match.path)}
        print_json({**record.model_dump(mode="json"), **extra, "seconds": record.seconds, "bytes": record.bytes})
    else:
        out = console()
        out.print(f"{record.kind}/{record.key}", style="bold")
        took = f"made {record.ended.astimezone():%Y-%m-%d %H:%M:%S} in {duration_text(record.seconds)}"
        out.print(f"{took}, {bytes_text(record.bytes)}" + (f", drafter {record.item}" if record.item else ""))
        if record.inputs:
            out.print(views.lineage_tree(found, record))
        for title, values in (("metrics", record.metrics), ("parameters", record.parameters)):
            if values:
                out.print(views.value_table(title, values))
        out.print(views.file_table(record, match.path))
        for line in damage:
            out.print(f"damaged: {line}", style="red", markup=False)
        if verify and not damage:
            out.print("every byte is as committed", style="green")
    if damage:
        raise typer.Exit(1)


def gc(
    config: ManyConfigs,
    flow: Annotated[list[str] | None, options.FLOW] = None,
    store: options.StoreOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: options.JsonOption = False,
) -> None:
    """Remove artifacts that no flow reaches.

    Reached is what a flow makes with one of the given configurations; `--config` may be repeated. Without
    `--flow`, every known flow counts. What reachable artifacts were made from is always kept. Features that were
    written to object storage are removed there too.
    """
    if not (yes or dry_run) and (as_json or not sys.stdin.isatty()):
        raise bad_input("gc", "nobody can be asked here", "--yes to remove, or --dry-run to see what would be")
    works = [open_work(name, file, store=store) for name in flow or resources.names("flows") for file in config]
    roots = {work.store.root for work in works}
    if len(roots) != 1:
        raise bad_input(
            "--config", "the configurations name more than one store", "one store", found=", ".join(map(str, roots))
        )
    reachable = {pair for work in works for pair in work.makes()}
    target = works[0].store
    removed = _collected(target, reachable, dry_run=True)
    total = sum(entry.bytes for entry in removed)
    if not as_json:
        out = console()
        if removed:
            out.print(views.removed_table(removed))
        verb = "would remove" if dry_run else "to remove"
        out.print(f"{verb}: {len(removed)}, {bytes_text(total)}")
    if removed and not dry_run:
        if not yes:
            typer.confirm("Remove these?", abort=True)
        removed = _collected(target, reachable, dry_run=False)
        if not as_json:
            console().print(f"removed: {len(removed)}, {bytes_text(sum(entry.bytes for entry in removed))}")
    if as_json:
        entries = [{"what": e.what, "name": e.name, "bytes": e.bytes} for e in removed]
        print_json({"store": str(target.root), "dry_run": dry_run, "bytes": total, "removed": entries})


def _collected(store: ArtifactStore, reachable: set[tuple[str, str]], *, dry_run: bool) -> list[Removed]:
    try:
        return collect_garbage(store, reachable, dry_run=dry_run)
    except StorageError as error:
        raise StageError(f"gc: {error}. What keeps its data there was not removed") from error


def register(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(show)
    app.command()(gc)
