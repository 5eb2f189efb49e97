"""``features``: what a store of features holds, and whether it is still what was captured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from specflow.cli import features_repair, options, views
from specflow.cli.locating import Located, locate
from specflow.cli.output import bytes_text, console, print_json
from specflow.cli.work import bad_input

if TYPE_CHECKING:
    from specflow.features.comparison import Comparison
    from specflow.features.reader import FeatureReader
    from specflow.features.statistics import StoreFigures
    from specflow.stages.contract import Artifact as StageArtifact
    from specflow.stages.features_check import Checked

KIND = "features"
STATING = ("features", "target", "drafter", "export")
"""Kinds of artifacts that state a feature contract, whole or in part."""
ARTIFACT = typer.Argument(help="A path, the start of a key, or nothing with --config.", show_default=False)
Artifact = Annotated[str, ARTIFACT]
OptionalConfig = Annotated[str | None, options.CONFIG]
Documents = Annotated[
    int, typer.Option("--documents", metavar="N", min=0, help="Documents to compute again; 0: only checksums.")
]
Target = Annotated[
    Path | None, typer.Option("--target", metavar="DIR", help="The target, where it is not in the artifact's store.")
]

group = typer.Typer(
    help="Look at stored features: figures, checksums, probes, repair.", no_args_is_help=True, rich_markup_mode=None
)


@group.command()
def stat(
    artifact: Artifact = KIND,
    config: OptionalConfig = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Norms, outliers and zeros of every layer; bytes; which documents there are."""
    from specflow.features.statistics import figures_of
    from specflow.stages.running import readable

    found = find(artifact, config=config, flow=flow, settings=settings, store=store)
    reader = _reader(artifact, found)
    with readable([_as_artifact(found)]):
        figures = figures_of(reader)
    size = reader.stored_bytes
    per_token = size / max(1, figures.tokens)
    if as_json:
        about = {"path": str(found.path), "contract": reader.contract.to_dict(), "contract_hash": reader.contract.hash}
        print_json({**about, "bytes": size, "bytes_per_token": per_token, **figures.as_json()})
        return
    out = console()
    out.print(views.value_table("contract", _readable(reader.contract.to_dict())))
    out.print(
        f"{figures.documents} documents, {figures.tokens} tokens, {100 * figures.supervised_share:.1f} % supervised, "
        f"{figures.rows} rows stored, {bytes_text(size)}, {per_token:.0f} bytes a token"
    )
    print_figures(out, figures)


@group.command()
def verify(
    artifact: Artifact = KIND,
    config: OptionalConfig = None,
    flow: options.FlowOption = options.DEFAULT_FLOW,
    settings: options.SetOption = None,
    store: options.StoreOption = None,
    documents: Documents = 4,
    target: Target = None,
    as_json: options.JsonOption = False,
) -> None:
    """Read every byte and compare checksums and token ids; compute some documents again.

    Exit code 1 where anything is damaged, or the features are not those of their target.
    """
    from specflow.stages.features_check import check_features

    found = find(artifact, config=config, flow=flow, settings=settings, store=store)
    checked = check_features(
        _as_artifact(found),
        target=_target(found, target) if documents else None,
        count=documents,
        tokens=found.input_path("tokens"),
    )
    if as_json:
        print_json({"path": str(found.path), "key": found.record.key if found.record else None, **checked.as_json()})
    else:
        print_checked(console(), checked)
    if checked.damage:
        raise typer.Exit(1)


@group.command()
def compare(
    one: Annotated[str, typer.Argument(help="A path or the start of a key: features, target, drafter or export.")],
    other: Annotated[str, typer.Argument(help="The same.")],
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Compare two feature contracts field by field.

    Exit code 1 where a field differs that must agree for these kinds.
    """
    from specflow.features.comparison import USE_OF_KINDS, Use, rows_of
    from specflow.features.comparison import compare as compared
    from specflow.stages.fitting import side_of

    first, second = (_stating(name, store) for name in (one, other))
    if (second.kind, first.kind) in USE_OF_KINDS:
        first, second = second, first
    found = compared(USE_OF_KINDS.get((first.kind, second.kind), Use.SAME), side_of(first), side_of(second))
    if as_json:
        rows = [(True, *row) for row in rows_of(found.refused)] + [(False, *row) for row in rows_of(found.told)]
        print_json(
            {
                "first": {"kind": first.kind, "where": found.first.where},
                "second": {"kind": second.kind, "where": found.second.where},
                "differences": [{"field": f, "first": a, "second": b, "must_agree": must} for must, f, a, b in rows],
            }
        )
    else:
        print_comparison(console(), found)
    if found.refused:
        raise typer.Exit(1)


def find(artifact: str, *, config: str | None, flow: str, settings: list[str] | None, store: Path | None) -> Located:
    """The features artifact that a command is about; raises ``InputErrors``."""
    found = locate(artifact, (KIND,), config=config, flow=flow, settings=settings, store=store, what="features")
    if not (found.path / "contract.json").exists() and not (found.path / "store").is_dir():
        raise bad_input(artifact, "no features are here", "the directory of a features artifact", found=str(found.path))
    return found


def print_figures(out: Console, figures: StoreFigures) -> None:
    vectors = views.plain_columns(
        ["", "mean norm", "rms", "largest", "at", "outlier channels", "zeros", "not finite"], left=(0, 4, 5)
    )
    for v in figures.vectors:
        outliers = ", ".join(f"{channel} ({ratio:.0f}x)" for channel, ratio in v.outliers)
        shown = f"{v.outlier_channels}: {outliers}" if outliers else "0"
        zeros = f"{100 * v.zero_share:.3g} %"
        vectors.add_row(
            v.name, f"{v.mean_norm:.4g}", f"{v.rms:.4g}", f"{v.largest:.4g}", v.largest_at, shown, zeros,
            str(v.not_finite),
        )  # fmt: skip
    out.print(vectors)
    coverage = views.plain_columns(["split", "kind", "documents", "tokens", "supervised", "greedy"], left=(0, 1))
    for row in figures.coverage:
        coverage.add_row(*(str(value) for value in row.values()))
    out.print(coverage)


def print_checked(out: Console, checked: Checked) -> None:
    """What was looked at, and everything that is wrong."""
    out.print(f"{checked.shards} shards, {checked.documents} documents: every checksum compared")
    if checked.comparison is not None and checked.comparison.refused:
        print_comparison(out, checked.comparison)
    if checked.probes:
        worst = max(p.error for p in checked.probes)
        neighbour = min(p.neighbour_error for p in checked.probes if p.neighbour_error is not None)
        out.print(
            f"{len(checked.probes)} documents computed again: largest relative difference {worst:.2g}, "
            f"nearest neighbouring layer {neighbour:.2g}"
        )
    for note in checked.notes:
        out.print(note, style="yellow", markup=False, soft_wrap=True)
    for line in checked.damage:
        out.print(f"damaged: {line}", style="red", markup=False, soft_wrap=True)
    if not checked.damage:
        out.print("nothing is damaged", style="green")


def print_comparison(out: Console, found: Comparison) -> None:
    """Both sides, and the table of what differs."""
    for side in (found.first, found.second):
        out.print(f"{side.what}: {side.where}", markup=False, soft_wrap=True)
    if found.refused or found.told:
        out.print(views.difference_table(found))
    else:
        out.print("no field that both state differs", style="green")


def _stating(name: str, store: Path | None) -> StageArtifact:
    """An artifact that states a contract."""
    found = locate(
        name, STATING, config=None, flow=options.DEFAULT_FLOW, settings=None, store=store, what="feature contract"
    )
    if found.record is None or found.record.kind not in STATING:
        raise bad_input(
            name, "this is no artifact with a feature contract", " or ".join(STATING), found=str(found.path)
        )
    return found.record.artifact(found.path)


def _reader(artifact: str, found: Located) -> FeatureReader:
    from specflow.features.location import StorageError
    from specflow.features.reader import FeatureReader
    from specflow.features.shard import DamagedShard

    try:
        return FeatureReader(found.path, checksums=False)
    except (DamagedShard, StorageError, ValueError, OSError) as error:
        hint = "a store that is whole: see `specflow features verify`"
        raise bad_input(artifact, "the store cannot be read", hint, found=str(error)) from error


def _as_artifact(found: Located) -> StageArtifact:
    from specflow.stages.contract import Artifact

    if found.record is not None:
        return found.record.artifact(found.path)
    return Artifact(kind=KIND, key="", path=found.path)


def _target(found: Located, given: Path | None) -> StageArtifact:
    from specflow.stages.contract import Artifact

    path = given or found.input_path("target")
    if path is None:
        expected = "--target DIR, or --documents 0 to compare checksums only"
        raise bad_input(str(found.path), "the target it was captured from is not in its store", expected)
    if not (path / "fingerprint.json").exists():
        raise bad_input(str(path), "no target artifact is here", "a directory with fingerprint.json")
    return Artifact(kind="target", key=path.absolute().name, path=path)


def _readable(contract: dict[str, Any]) -> dict[str, Any]:
    return {k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in contract.items()}


features_repair.register(group)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="features")
