"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specflow.config import resources


def _complete_config(incomplete: str) -> list[str]:
    return [name for name in resources.names("configs") if name.startswith(incomplete)]


def _complete_flow(incomplete: str) -> list[str]:
    return [name for name in resources.names("flows") if name.startswith(incomplete)]


DEFAULT_FLOW = "full-pipeline"

# Typer reads these annotations; each is one option, the same wherever it is used.
CONFIG: Any = typer.Option(
    "--config", "-c", metavar="FILE|NAME", help="Configuration: a YAML file, or the name of a shipped one.",
    autocompletion=_complete_config,
)  # fmt: skip
SET: Any = typer.Option(
    "--set", metavar="A.B=VALUE", help="Override a key of the configuration; may be repeated. `*` is every name."
)
STORE: Any = typer.Option("--store", metavar="DIR", help="Directory of the artifact store, in place of `store`.")
JSON: Any = typer.Option("--json", help="Print one JSON document instead of text.")
FLOW: Any = typer.Option("--flow", metavar="FILE|NAME", help="The flow.", autocompletion=_complete_flow)

ConfigOption = Annotated[str, CONFIG]
SetOption = Annotated[list[str] | None, SET]
StoreOption = Annotated[Path | None, STORE]
JsonOption = Annotated[bool, JSON]
FlowOption = Annotated[str, FLOW]
FlowArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLOW", help="The flow: a YAML file, or the name of a shipped one.", autocompletion=_complete_flow
    ),
]
