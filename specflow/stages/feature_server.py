"""The server side of ``capture``: an SGLang server that runs already, or one started for the stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.capture import CaptureParams
from specflow.stages.contract import Context, Problem, StageError
from specflow.stages.machine import remembered
from specflow.stages.sglang_section import api_key_of, check_section

if TYPE_CHECKING:
    from specflow.targets.sglang.facts import ServerFacts, Wanted
    from specflow.targets.sglang.process import SglangProcess
    from specflow.targets.sglang.server import Access, FeatureServer

LOG = "sglang.log"
WEIGHTS = {"float32": "fp32", "bfloat16": "bf16"}


def check_server(params: CaptureParams) -> Iterator[Problem]:
    """What can be known before anything runs."""
    if params.engine != "sglang":
        return
    yield from check_section(params.sglang)
    if params.precision == "packed":
        yield Problem(where="precision", found="packed", expected="fp32, bf16 or auto: a server has no packed weights")


def served_precision(params: CaptureParams, target: Path, context: Context) -> str:
    """The arithmetic of the server, which is then also that of the target in this process.

    A running server is asked once per artifact: a resumed run needs it only if rows are missing.
    """
    if params.sglang.url is None:
        return params.precision if params.precision != "auto" else _of_the_weights(target)

    def ask() -> str:
        from specflow.targets.retrying import ServerError
        from specflow.targets.sglang.server import read_facts

        try:
            facts = read_facts(_access(params, str(params.sglang.url)))
        except ServerError as error:
            raise StageError(f"capture: {error}") from error
        served = facts.precision(_config(target))
        if served is None:
            raise StageError(
                f"capture: the server at {params.sglang.url} computes in {facts.server.get('dtype')}: start it with "
                "--dtype float32 or bfloat16"
            )
        return served

    served = str(remembered(context.scratch, "server_precision", ask))
    if params.precision not in ("auto", served):
        raise StageError(f"capture.precision is {params.precision}, and {params.sglang.url} computes in {served}")
    return served


@contextmanager
def feature_server(
    params: CaptureParams, target: Path, *, precision: str, longest: int, context: Context, workers: int = 1
) -> Iterator[FeatureServer]:
    """A server that is fit to capture ``target``; one that is started here ends with the block.

    ``longest``: tokens of the longest document that is missing. Trouble with the server, also inside the block, becomes
    a :class:`StageError`.
    """
    from specflow.targets.retrying import ServerError
    from specflow.targets.sglang.facts import Wanted
    from specflow.targets.sglang.rows import WrongRows
    from specflow.targets.sglang.server import fit_server, layers_to_ask, read_facts

    config = _config(target)
    wanted = Wanted(
        target=target,
        config=config,
        layer_ids=layers_to_ask(params.layer_ids, int(config["num_hidden_layers"])),
        precision=precision,
        longest=longest,
    )
    started: SglangProcess | None = None
    with ExitStack() as stack:
        try:
            url = params.sglang.url
            if url is None:
                started = stack.enter_context(_process(params, wanted, context))
                url = started.url
            access = _access(params, url)
            facts = read_facts(access)
            memory = int(params.sglang.memory_gb * 1e9)
            server = fit_server(access, facts, wanted, memory_bytes=memory, workers=workers)
            _log(facts, server, context)
            yield server
        except (ServerError, WrongRows) as error:
            end = started.died() if started is not None and started.running else None
            raise StageError(
                f"capture: {error}{f'; {end}' if end else ''}\nFinished shards are kept: run the same command to go on"
            ) from error


def _process(params: CaptureParams, wanted: Wanted, context: Context) -> SglangProcess:
    from specflow.targets.sglang.launching import capture_arguments, shell
    from specflow.targets.sglang.process import SglangProcess

    assert params.sglang.python is not None
    arguments = capture_arguments(wanted, further=params.sglang.launch_flags)
    log = context.scratch / LOG
    context.log(f"starting {shell(arguments)}; its log is {log}")
    python, timeout = params.sglang.python.absolute(), params.sglang.start_timeout
    return SglangProcess(python, arguments, log=log, start_timeout=timeout)


def _log(facts: ServerFacts, server: FeatureServer, context: Context) -> None:
    from specflow.targets.sglang.facts import TESTED_VERSION

    context.log(
        f"features of SGLang {facts.version}, serving {facts.model_path} in {server.precision}; at most "
        f"{server.tokens} tokens in flight"
    )
    if facts.version != TESTED_VERSION:
        context.log(f"warning: specflow is tested with SGLang {TESTED_VERSION}; the probes judge what this one returns")
    if not Path(facts.model_path).is_dir():
        context.log(f"{facts.model_path} is not on this machine: that it is the target is judged by the probes alone")


def _access(params: CaptureParams, url: str) -> Access:
    from specflow.targets.retrying import Retrying
    from specflow.targets.sglang.server import Access

    section = params.sglang
    return Access(
        url=url,
        api_key=api_key_of(section, stage="capture"),
        retrying=Retrying(retries=section.retries, backoff=section.backoff),
        timeout=section.timeout,
        concurrency=section.concurrency,
    )


def _config(target: Path) -> dict[str, Any]:
    return dict(json.loads((target / "config.json").read_text(encoding="utf-8")))


def _of_the_weights(target: Path) -> str:
    config = _config(target)
    dtype = str(config.get("dtype") or config.get("torch_dtype"))
    if dtype not in WEIGHTS:
        raise StageError(f"capture.precision is auto and the target's weights are {dtype}: set it to fp32 or bf16")
    return WEIGHTS[dtype]
