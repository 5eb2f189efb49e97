"""``advise``: which drafter, how many proposals and which scheduler to use at a load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from specflow.cli import options
from specflow.cli.output import console, print_json
from specflow.cli.work import open_store
from specflow.config.errors import InputErrors, InputProblem, Location
from specflow.workflow.evidence import BENCHMARK, CALIBRATION, NoEvidence, costs_record, stored_evidence
from specflow.workflow.store import ArtifactStore

if TYPE_CHECKING:
    from specflow.simulation.advice import Advice, Option
    from specflow.workflow.evidence import StoredEvidence

OptionalConfig = Annotated[str | None, options.CONFIG]
Concurrency = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, max=512, help="Requests that run at the same time.")
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", metavar="R", help="Requests that arrive per second, at random; without it, a closed loop."),
]
Drafter = Annotated[str | None, typer.Option("--drafter", metavar="NAME", help="Only this drafter; without it, all.")]


def advise(
    concurrency: Concurrency = 8,
    rate: Rate = None,
    drafter: Drafter = None,
    config: OptionalConfig = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Say how to decode at your load, and what to expect.

    Reads the newest cost table of the store, and the benchmarks and calibrations of the same target.
    """
    from specflow.costs.sglang_tables import table_from_json
    from specflow.simulation.advice import advise as find_advice
    from specflow.simulation.evidence import Sources, conditions_of, gather
    from specflow.simulation.load import Load

    found = open_store(config, store)
    stored = _stored(found, drafter, rate)
    costs = costs_record(found, stored.costs)
    table = table_from_json(costs["tables"]["additive"])
    gathered = [
        gather(
            Sources(
                name=d.name,
                benchmark=found.path(BENCHMARK, d.benchmark.key) if d.benchmark else None,
                calibration=found.path(CALIBRATION, d.calibration.key) if d.calibration else None,
            ),
            table,
        )
        for d in stored.drafters
    ]
    advice = find_advice([g.evidence for g in gathered], Load(concurrency=concurrency, rate=rate))
    notes = [f"costs measured on: {conditions_of(costs)}", *(note for g in gathered for note in g.notes)]
    if as_json:
        print_json({**_as_json(advice), "artifacts": _artifacts(stored), "notes": notes})
        return
    out = console()
    out.print(_options_table(advice))
    out.print(_curve_table(advice))
    for note in notes:
        out.print(note, markup=False, soft_wrap=True)
    out.print(_sentence(advice), style="bold", markup=False, soft_wrap=True)


def _stored(store: ArtifactStore, drafter: str | None, rate: float | None) -> StoredEvidence:
    problems = []
    if rate is not None and not rate > 0:
        problems.append(_problem("--rate", "not a rate", "more than 0 requests per second", str(rate)))
    try:
        stored = stored_evidence(store, drafter=drafter)
    except NoEvidence as error:
        problems += [_problem(str(store.root), what, how) for what, how in error.missing]
        raise InputErrors(problems) from error
    if problems:
        raise InputErrors(problems)
    return stored


def _problem(source: str, message: str, hint: str, found: str = "") -> InputProblem:
    return InputProblem(location=Location(source=source), path="", message=message, found=found, hint=hint)


def _options_table(advice: Advice) -> Table:
    load = advice.load
    arrival = "always there" if load.rate is None else f"{load.rate:g} a second at random"
    table = Table(title=f"{load.concurrency} requests at a time, {arrival}; prefill included", title_justify="left")
    for name in ("drafter", "decoding", "tokens/s", "x plain", "tau", "rows/request", "break-even", ""):
        table.add_column(name, justify="left" if name in ("drafter", "decoding", "") else "right")
    if load.rate is not None:
        table.add_column("seconds/request", justify="right")
    for option in advice.options:
        if _worth_showing(option, advice):
            table.add_row(*_cells(option, advice), style="green" if option is advice.best else "")
    return table


def _worth_showing(option: Option, advice: Advice) -> bool:
    """Plain decoding, the schedulers, and of the fixed lengths the full one and the best."""
    return option.drafter is None or option is advice.best or _break_even(option, advice) != ""


def _break_even(option: Option, advice: Advice) -> str:
    if option.drafter is None or option.policy.name not in advice.break_even[option.drafter]:
        return ""
    largest = advice.break_even[option.drafter][option.policy.name]
    return "never faster" if largest is None else f"faster up to {largest}"


def _cells(option: Option, advice: Advice) -> list[str]:
    outcome = option.outcome
    cells = [
        option.drafter or "-",
        option.policy.name,
        f"{outcome.tokens_per_second:.1f}",
        f"{option.gain:.2f}",
        f"{outcome.tokens_per_round:.2f}",
        f"{outcome.rows_per_request:.2f}",
        _break_even(option, advice),
        "" if option.measured else "beyond the cost table",
    ]
    if advice.load.rate is not None:
        cells.append("-" if outcome.seconds_per_request is None else f"{outcome.seconds_per_request:.2f}")
    return cells


def _curve_table(advice: Advice) -> Table:
    table = Table(title="The best at other concurrencies, in a closed loop", title_justify="left")
    for name in ("concurrency", "drafter", "decoding", "tokens/s", "x plain", ""):
        table.add_column(name, justify="left" if name in ("drafter", "decoding", "") else "right")
    for row in advice.curve:
        length = row["verified_proposals"]
        table.add_row(
            str(row["concurrency"]),
            row["drafter"] or "-",
            row["policy"] if length is None else f"{row['policy']} {length}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['times_plain']:.2f}",
            "" if row["measured"] else "beyond the cost table",
        )
    return table


def _sentence(advice: Advice) -> str:
    best, outcome = advice.best, advice.best.outcome
    expected = f"expect {outcome.tokens_per_second:.1f} tokens/s, {best.gain:.2f} times plain decoding"
    if best.drafter is None:
        return f"use no drafter: nothing is faster here; {expected}"
    how = {
        "fixed": f"verify {best.policy.length} proposals of every request",
        "causal": "scheduler `causal`",
        "lagged": "scheduler `lagged`",
    }[best.policy.kind]
    return f"use drafter {best.drafter}, {how}; {expected}"


def _as_json(advice: Advice) -> dict[str, Any]:
    return {
        "load": {"concurrency": advice.load.concurrency, "rate": advice.load.rate},
        "best": advice.best.as_json(),
        "options": [option.as_json() for option in advice.options],
        "break_even": advice.break_even,
        "curve": list(advice.curve),
    }


def _artifacts(stored: StoredEvidence) -> dict[str, Any]:
    return {
        "costs": stored.costs.key,
        "drafters": {
            d.name: {
                BENCHMARK: d.benchmark.key if d.benchmark else None,
                CALIBRATION: d.calibration.key if d.calibration else None,
            }
            for d in stored.drafters
        },
    }


def register(app: typer.Typer) -> None:
    app.command()(advise)
