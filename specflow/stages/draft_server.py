"""The server side of ``parity`` and ``load``: an SGLang server, running already or started here."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.sglang import DraftServer, SglangServer
from specflow.stages.contract import Context, Inputs, StageError
from specflow.stages.sglang_section import api_key_of

if TYPE_CHECKING:
    from specflow.serving.serving import Serving
    from specflow.serving.settings import Setting
    from specflow.serving.verification.answers import Answer
    from specflow.targets.sglang.process import SglangProcess
    from specflow.targets.sglang.server import Access

LOG = "sglang.log"
SUSPECT = re.compile(r"warn|error|not found|missing|ignor|random|mismatch|fall ?back", re.IGNORECASE)
MOST_WARNINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A server that answers, and what it says of itself."""

    access: Access
    settings: list[Setting]
    info: Mapping[str, Any]
    """All that ``/server_info`` states."""
    other_model: Sequence[str]
    """Why the model that it serves is not the target."""
    precision: str
    version: str
    log: Path | None
    """None where it was not started here."""

    def greedy(
        self, prompts: Mapping[int, Sequence[int]], *, max_new_tokens: int, end_ids: Iterable[int]
    ) -> Iterator[tuple[int, Answer]]:
        """One prompt at a time. Raises ``StageError`` where a reply cannot be what was asked for."""
        from specflow.serving.verification.answers import served_answer

        with asyncio.Runner() as runner:
            client = self.access.client()
            try:
                for index, ids in prompts.items():
                    asked = client.greedy(ids, max_new_tokens=max_new_tokens, end_ids=end_ids)
                    reply = runner.run(asked)
                    try:
                        yield index, served_answer(reply)
                    except ValueError as error:
                        raise StageError(f"parity: {self.access.url}: {error}") from error
            finally:
                runner.run(client.__aexit__(None, None, None))

    def warnings(self) -> list[str]:
        """The last lines of its log that may tell why a draft does not work."""
        if self.log is None:
            return []
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return list(dict.fromkeys(line.strip() for line in lines if SUSPECT.search(line)))[-MOST_WARNINGS:]


@contextmanager
def drafting_server(section: DraftServer, inputs: Inputs, context: Context) -> Iterator[Drafting]:
    """A server for the export; one that is started here ends with the block.

    Trouble with the server, also inside the block, becomes a :class:`StageError`.
    """
    serving = draft_serving(section, inputs, stage="parity")
    with served(section, serving, inputs.one("target").path, context, stage="parity", kept="prompts") as found:
        yield found


def draft_serving(section: SglangServer, inputs: Inputs, *, stage: str) -> Serving:
    """How the export is served. Raises ``StageError`` for a draft that cannot be."""
    from specflow.serving.serving import plan_serving

    try:
        return plan_serving(inputs.one("export").path, inputs.one("target").path, further=section.launch_flags)
    except ValueError as error:
        raise StageError(f"{stage}: {error}") from error


@contextmanager
def served(
    section: SglangServer, serving: Serving, target: Path, context: Context, *, stage: str, kept: str, log: str = LOG
) -> Iterator[Drafting]:
    """The server of the section's ``url``, or one that is started for the block; ``kept``: what a failure leaves.

    Trouble with the server, also inside the block, becomes a :class:`StageError`.
    """
    from specflow.targets.retrying import ServerError

    started: SglangProcess | None = None
    with ExitStack() as stack:
        try:
            if section.url is None:
                started = stack.enter_context(_process(section, serving, context, log))
            access = _access(section, section.url or (started.url if started else ""), stage)
            yield _looked_at(access, serving, target, log=started.log if started else None, stage=stage)
        except ServerError as error:
            end = started.died() if started is not None and started.running else None
            raise StageError(
                f"{stage}: {error}{f'; {end}' if end else ''}\nFinished {kept} are kept: run the same command to go on"
            ) from error


def _process(section: SglangServer, serving: Serving, context: Context, name: str) -> SglangProcess:
    from specflow.targets.sglang.launching import shell
    from specflow.targets.sglang.process import SglangProcess

    assert section.python is not None
    log = context.scratch / name
    context.log(f"starting {shell(serving.arguments)}; its log is {log}")
    return SglangProcess(section.python.absolute(), serving.arguments, log=log, start_timeout=section.start_timeout)


def _looked_at(access: Access, serving: Serving, target: Path, *, log: Path | None, stage: str) -> Drafting:
    """Raises ``StageError`` where it computes in what the embedded engine cannot be compared with."""
    from specflow.serving.settings import effective_settings
    from specflow.targets.sglang.server import read_facts

    facts = read_facts(access)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    precision = facts.precision(config)
    if precision is None:
        raise StageError(
            f"{stage}: the server at {access.url} computes in {facts.server.get('dtype')}: start it with --dtype "
            "float32 or bfloat16"
        )
    return Drafting(
        access=access,
        settings=effective_settings(facts.server, serving.expected),
        info=facts.server,
        other_model=facts.differing_model(target, config),
        precision=precision,
        version=facts.version,
        log=log,
    )


def _access(section: SglangServer, url: str, stage: str) -> Access:
    from specflow.targets.retrying import Retrying
    from specflow.targets.sglang.server import Access

    return Access(
        url=url,
        api_key=api_key_of(section, stage=stage),
        retrying=Retrying(retries=section.retries, backoff=section.backoff),
        timeout=section.timeout,
        concurrency=1,
    )
