"""What ``regenerate`` reads: the prompts of its sources, and what their first rows tell before anything runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specflow.config.inputs import InputParams, PromptSource
from specflow.config.regenerate import RegenerateParams
from specflow.stages.contract import Context, Problem

if TYPE_CHECKING:
    from specflow.data.inputs.prepared import Prepared

LOOKED_AT: Final = 4096
"""Rows of each source that are read before anything runs."""


def read_prompts(params: RegenerateParams, context: Context) -> Prepared:
    """The prompts, and what became of the rows of each source; they lie in ``scratch``.

    Raises :class:`specflow.data.quarantine.DataError`, also where too many of the rows read cannot be used.
    """
    from specflow.data.inputs.prepare import prepare
    from specflow.data.quarantine import enforce_share

    made = prepare(
        params.train,
        params.heldout,
        params.inputs,
        folder=context.scratch / "inputs",
        every_turn=params.turns == "all",
        log=context.log,
    )
    enforce_share(made.quarantined(), total=made.total, largest_share=params.max_skipped)
    made.refuse_empty()
    summary = made.summary()
    if summary["set_aside"]:
        context.log(f"{made.kept} of {made.total} prompts are used; set aside by reason: {summary['set_aside']}")
    return made


def check_sources(params: RegenerateParams) -> list[Problem]:
    """Problems of the first rows of every source: missing, empty, unreadable, too many bad rows, rows in both splits.

    A dataset of the hub is not looked at: nothing is fetched before the run.
    """
    from specflow.data.inputs.prepare import prepare
    from specflow.data.quarantine import DataError, enforce_share

    problems = []
    with tempfile.TemporaryDirectory(prefix="specflow-") as scratch:
        for where, source in _here(params):
            try:
                prepare([source], [], _alone(params.inputs), folder=Path(scratch, "one"))
            except DataError as error:
                problems.append(
                    Problem(
                        where=where,
                        found=str(error),
                        expected='rows like {"messages": [{"role": "user", "content": "..."}]}',
                        hint="other forms are in docs/data.md; a path is relative to the configuration file",
                    )
                )
        train, heldout = ([_start(s) for s in sources if s.path] for sources in (params.train, params.heldout))
        if problems or not train:
            return problems
        made = prepare(
            train, heldout, _alone(params.inputs), folder=Path(scratch, "all"), every_turn=params.turns == "all"
        )
        # The first rows of a larger source may be its worst ones: the run judges all of them.
        allowed = params.max_skipped if _whole(made) else 1.0
        try:
            enforce_share(made.quarantined(), total=made.total, largest_share=allowed)
            if _whole(made):
                made.refuse_empty()
        except DataError as error:
            problems.append(Problem(where="train", found=str(error), expected="usable prompts"))
    return problems


def expected_rows(params: RegenerateParams) -> tuple[int | None, str]:
    """How many prompts there will be, none where it is unknown; and ``at least `` where not every row was read."""
    from specflow.data.inputs.prepare import prepare
    from specflow.data.quarantine import DataError

    if any(source.path is None for source in (*params.train, *params.heldout)):
        return None, ""
    train, heldout = ([_start(source) for source in sources] for sources in (params.train, params.heldout))
    with tempfile.TemporaryDirectory(prefix="specflow-") as scratch:
        try:
            made = prepare(
                train, heldout, _alone(params.inputs), folder=Path(scratch, "all"), every_turn=params.turns == "all"
            )
        except DataError:
            return None, ""
        return made.kept, "" if _whole(made) else "at least "


def _here(params: RegenerateParams) -> Iterator[tuple[str, PromptSource]]:
    """(where in the section, first rows) of every source that is on this machine."""
    for split in ("train", "heldout"):
        for i, source in enumerate(getattr(params, split)):
            if source.path is not None:
                yield f"{split}.{i}.path", _start(source)


def _start(source: PromptSource) -> PromptSource:
    return source.model_copy(update={"limit": min(source.limit or LOOKED_AT, LOOKED_AT)})


def _alone(inputs: InputParams) -> InputParams:
    """The first rows are few: starting workers would take longer than reading them."""
    return inputs.model_copy(update={"workers": 1})


def _whole(made: Prepared) -> bool:
    """Whether every row was read; of a source with just as many rows as were looked at, it is not known."""
    return all(counts.rows < LOOKED_AT for counts in made.counts)
