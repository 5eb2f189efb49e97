"""A flow of as many concurrent tasks as the command line says; prints the id of its run."""

from __future__ import annotations

import json
import sys
import time

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

COUNT = int(sys.argv[1])


@task(cache_policy=NO_CACHE, persist_result=False)
def stage(number: int) -> int:
    time.sleep(0.5)  # so that many are running at a time
    return number


@flow(task_runner=ThreadPoolTaskRunner(max_workers=COUNT), persist_result=False)
def many() -> str:
    futures = [stage.submit(number) for number in range(COUNT)]
    assert sorted(future.result() for future in futures) == list(range(COUNT))
    return str(flow_run.id)


run = many()
EventsWorker.drain_all(timeout=60.0, at_exit=False)
print(json.dumps({"flow_run": run}))
