"""``drafters``, ``promote`` and ``rollback``: the registry of drafters in the artifact store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.markup import escape

from specflow.cli import options, views
from specflow.cli.output import console, print_json
from specflow.cli.work import bad_input, open_store
from specflow.config.gate import GateParams
from specflow.config.loading import load_config
from specflow.reporting import text
from specflow.workflow import promoting
from specflow.workflow.promotion import DrafterRegistry, Entry, RegistryError

OptionalConfig = Annotated[str | None, options.CONFIG]
Service = Annotated[
    str | None,
    typer.Option("--service", metavar="NAME", help="Name that the promoted drafter is known by; none: gate.service."),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the registry.")]
Drafter = Annotated[str, typer.Argument(metavar="DRAFTER", help="Start of the key of a drafter or of its export.")]


def drafters(
    config: OptionalConfig = None,
    store: options.StoreOption = None,
    service: Service = None,
    events: Annotated[bool, typer.Option("--events", help="Every event, not only what came of them.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show candidate, promoted and retired drafters, and why.

    Without `--service`, those of every service.
    """
    found = open_store(config, store)
    registry = DrafterRegistry(found)
    with _told():
        if events:
            log = [event for event in registry.events() if service in (None, event.service)]
            if as_json:
                print_json([event.model_dump(mode="json") for event in log])
                return
            for event in log:
                line = (
                    f"{event.time.astimezone():%Y-%m-%d %H:%M:%S}  {event.service}  {event.event}  {event.drafter[:12]}"
                )
                console().print(f"{line}  {event.name}  {event.reason}".rstrip(), markup=False, soft_wrap=True)
            return
        entries = registry.entries(service)
    if as_json:
        rows = [{**entry.model_dump(mode="json"), "path": _path(registry, entry)} for entry in entries]
        print_json({"store": str(found.root), "drafters": rows})
        return
    out = console()
    if not entries:
        out.print(f"no drafter is registered in {found.root}; `specflow run retrain` registers those it trains")
        return
    table = views.plain_columns(
        ["service", "drafter", "name", "state", "since", "why", "tok/s", "tau"], left=(0, 1, 2, 3, 4, 5)
    )
    for entry in entries:
        table.add_row(*map(escape, _cells(entry)), style=None if entry.state == "promoted" else "dim")
    out.print(table)
    for entry in entries:
        if path := _path(registry, entry):
            out.print(f"{entry.service}: {path}", markup=False, soft_wrap=True)


def promote(
    drafter: Drafter,
    config: OptionalConfig = None,
    store: options.StoreOption = None,
    service: Service = None,
    reason: Reason = "by hand",
    as_json: options.JsonOption = False,
) -> None:
    """Promote a drafter without asking the gate.

    The link `promoted/SERVICE` of the store then names its export; a server that runs must load it anew.
    """
    found, name = open_store(config, store), _service(config, service)
    with _told():
        event = promoting.promote(found, name, drafter, reason=reason)
    if as_json:
        print_json({**event.model_dump(mode="json"), "path": str(DrafterRegistry(found).link(name))})
    else:
        link = DrafterRegistry(found).link(name)
        console().print(f"{name}: drafter {event.drafter[:12]} is promoted: {link}", markup=False, soft_wrap=True)


def rollback(
    config: OptionalConfig = None,
    store: options.StoreOption = None,
    service: Service = None,
    reason: Reason = "by hand",
    as_json: options.JsonOption = False,
) -> None:
    """Retire the promoted drafter and promote the one before it.

    The gate does not promote the retired one again. If it was the first, no drafter is promoted then.
    """
    found, name = open_store(config, store), _service(config, service)
    with _told():
        taken, promoted = promoting.rollback(found, name, reason=reason)
    if as_json:
        now = promoted.model_dump(mode="json") if promoted else None
        print_json({"retired": taken.model_dump(mode="json"), "promoted": now})
        return
    now_line = f"drafter {promoted.drafter[:12]} is promoted again" if promoted else "none is promoted now"
    console().print(f"{name}: drafter {taken.drafter[:12]} is retired, {now_line}", markup=False, soft_wrap=True)


def _service(config: str | None, service: str | None) -> str:
    if service is not None:
        return service
    default: str = GateParams.model_fields["service"].default
    return load_config(config).config.gate.service if config is not None else default


def _path(registry: DrafterRegistry, entry: Entry) -> str | None:
    return str(registry.link(entry.service)) if entry.state == "promoted" else None


def _cells(entry: Entry) -> list[str]:
    return [
        entry.service,
        entry.drafter[: views.KEY_LENGTH],
        entry.name,
        entry.state,
        f"{entry.since.astimezone():%Y-%m-%d %H:%M}",
        entry.reason,
        text.number(entry.figures.get("tokens_per_second"), 1),
        text.number(entry.figures.get("tau")),
    ]


@contextmanager
def _told() -> Iterator[None]:
    """What the registry refuses is bad input: nothing was changed."""
    try:
        yield
    except RegistryError as error:
        raise bad_input("registry of drafters", str(error), "a drafter and a service of the registry") from error


def register(app: typer.Typer) -> None:
    app.command()(drafters)
    app.command()(promote)
    app.command()(rollback)
