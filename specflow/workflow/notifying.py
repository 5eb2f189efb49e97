"""Telling people how a run ended, through a Prefect block that holds the address and its secrets."""

from __future__ import annotations

import logging
from typing import Any

from specflow.config.operations import OperationsParams
from specflow.workflow.results import NodeResult


def notify(operations: OperationsParams, run_name: str, results: list[NodeResult]) -> None:
    """Send the outcome if it is asked for. Whatever hinders that is logged, and does not fail the run."""
    bad = [result for result in results if not result.succeeded]
    if operations.notify is None or (operations.notify_on == "failure" and not bad):
        return
    try:
        # Loading needs the block's class registered, which importing the module does.
        import prefect.blocks.notifications  # noqa: F401
        from prefect.blocks.core import Block

        block: Any = Block.load(operations.notify)
        block.notify(message(results), subject=f"specflow {run_name}: {'failed' if bad else 'done'}")
    except Exception as error:
        # The message of the error may hold the block's address, which is a secret.
        logging.getLogger(__name__).warning("block %s was not told: %s", operations.notify, type(error).__name__)


def message(results: list[NodeResult]) -> str:
    """One line per node that did not succeed, and how many there are of each kind."""
    counts: dict[str, int] = {}
    for result in results:
        counts[result.status] = counts.get(result.status, 0) + 1
    lines = [", ".join(f"{count} {status}" for status, count in counts.items())]
    lines += [f"{r.id}: {r.status}: {r.message}" for r in results if not r.succeeded]
    return "\n".join(lines)
