"""What a deployment runs: ``specflow run`` as the flow run that a Prefect worker started.

Prefect imports this module by the deployment's entry point; no other module does.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, TextIO, cast

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from specflow.cli.work import open_work
from specflow.config.errors import InputErrors
from specflow.workflow.console import PlainConsole
from specflow.workflow.prefect_flow import final_state
from specflow.workflow.runner import run_plan

LOOK_SECONDS = 1.0


@flow(name="specflow", persist_result=False, validate_parameters=False, retries=0)
def run_flow(flow: str, config: str, overrides: list[str]) -> Any:
    """Run a flow on a configuration; ``overrides`` as after ``--set``."""
    _die_with_worker()
    logger = get_run_logger()
    try:
        work = open_work(flow, config, settings=overrides)
        planned = work.plan()
        if planned.problems:
            raise InputErrors(planned.problems)
    except InputErrors as errors:
        for problem in errors.problems:
            logger.error(str(problem))
        return Failed(message=f"{len(errors.problems)} errors in flow or configuration; nothing was run")
    result = run_plan(planned, console=PlainConsole(_lines_to(logger)), in_flow_run=True)
    if result.interrupted:
        return Cancelled(message="interrupted; finished pieces are kept")
    return final_state(planned, list(result.nodes))


@flow(name="specflow-watch", persist_result=False, validate_parameters=False, retries=0)
def watch_once(config: str, overrides: list[str]) -> Any:
    """One reading of ``specflow watch``, which starts the deployment that ``watch.deployment`` names."""
    _die_with_worker()
    logger = get_run_logger()
    words = [word for text in overrides for word in ("--set", text)]
    command = [sys.executable, "-m", "specflow", "watch", "--config", config, "--once", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        logger.info(line)
    last = (done.stdout or done.stderr).strip().splitlines()[-1:] or ["nothing was said"]
    return Failed(message=last[0]) if done.returncode else Completed(message=last[0])


class _Lines(io.TextIOBase):
    """A stream whose lines become messages of a logger."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger, self._rest = logger, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._logger.info(line)
        return len(text)


def _lines_to(logger: logging.Logger | logging.LoggerAdapter[Any]) -> TextIO:
    return cast(TextIO, _Lines(logger))


def _die_with_worker() -> None:
    """Do not outlive the worker that started this process: another one takes the run up, and two would compete.

    The stages end with the pipes that this process holds.
    """
    worker = os.getppid()
    if worker <= 1:  # in a container, which ends as a whole
        return

    def watch() -> None:
        while os.getppid() == worker:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="worker-watch", daemon=True).start()
