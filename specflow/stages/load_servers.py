"""The two servers of ``load``: with the drafter and without, in turn or side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specflow.config.load import LoadParams
from specflow.config.sglang import SglangServer
from specflow.stages.contract import Context, Inputs, StageError

if TYPE_CHECKING:
    from specflow.serving.load.generator import Endpoint
    from specflow.serving.serving import Serving
    from specflow.stages.draft_server import Drafting


class StageServers:
    """``with StageServers(...) as servers``; see ``specflow.serving.load.matrix.Servers``.

    A server that is started for one block of the matrix ends with it, unless both run together: those, and servers
    that run already, are looked at once. ``on_server`` is told of each, and raises where it is not to be measured.
    """

    def __init__(
        self,
        params: LoadParams,
        inputs: Inputs,
        context: Context,
        *,
        end_ids: Sequence[int],
        on_server: Callable[[str, Drafting], None],
    ) -> None:
        self._params, self._inputs, self._context = params, inputs, context
        self._end_ids, self._on_server = end_ids, on_server
        self._stack = ExitStack()
        self._held: dict[str, Endpoint] = {}
        self.planned = {mode: self._plan(mode) for mode in ("plain", "drafter")}
        self._scratch = context.scratch

    @property
    def together(self) -> bool:
        """Whether both are up at the same time."""
        return self._params.together or self._params.sglang.url is not None

    @property
    def alternation(self) -> str:
        """In words, for the record."""
        if self.together:
            return "both servers are up; they take turns cell by cell, and who begins is swapped every time"
        return (
            "one server at a time: each is started, measures the whole matrix once, and is ended, for every repeat; "
            "who begins is swapped every time"
        )

    @contextmanager
    def endpoint(self, mode: str, *, repeat: int) -> Iterator[Endpoint]:
        if mode in self._held:
            yield self._held[mode]
        elif self.together:
            self._held[mode] = self._stack.enter_context(self._served(mode))
            yield self._held[mode]
        else:
            with self._served(mode) as endpoint:
                yield endpoint

    @contextmanager
    def _served(self, mode: str) -> Iterator[Endpoint]:
        from specflow.serving.load.generator import Endpoint
        from specflow.serving.load.protocols import Generate

        with self._up(mode) as server:
            self._on_server(mode, server)
            yield Endpoint(
                url=server.access.url,
                dialect=Generate(end_ids=tuple(self._end_ids)),
                timeout=server.access.timeout,
                api_key=server.access.api_key,
            )

    def _up(self, mode: str) -> AbstractContextManager[Drafting]:
        from specflow.stages.draft_server import served

        target = self._inputs.one("target").path
        section, serving = self._section(mode), self.planned[mode]
        return served(section, serving, target, self._context, stage="load", kept="blocks", log=f"sglang-{mode}.log")

    def _section(self, mode: str) -> SglangServer:
        own, baseline = self._params.sglang, self._params.baseline
        return own if mode == "drafter" else own.model_copy(update={"url": baseline.url})

    def _plan(self, mode: str) -> Serving:
        from specflow.serving.serving import plan_baseline
        from specflow.stages.draft_server import draft_serving

        drafting = draft_serving(self._params.sglang, self._inputs, stage="load")
        if mode == "drafter":
            return drafting
        further = (*self._params.sglang.launch_flags, *self._params.baseline.launch_flags)
        return plan_baseline(self._inputs.one("target").path, dtype=drafting.flags["--dtype"], further=further)

    def stated(self, mode: str) -> Mapping[str, Any]:
        """Settings and version of a server that was up, in this run or in the one that this one goes on from."""
        found: Mapping[str, Any] = json.loads(_said_file(mode, self._scratch).read_text(encoding="utf-8"))
        return found

    def __enter__(self) -> StageServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, trace)


def require_settings(mode: str, server: Drafting) -> None:
    """``StageError`` where a server does not run as it must: what it does would be another one's figures."""
    from specflow.serving.settings import differing

    wrong = [str(s) for s in differing(server.settings)] + list(server.other_model)
    if wrong:
        listed = "".join(f"\n  {line}" for line in wrong)
        raise StageError(f"load: the server for mode {mode} at {server.access.url} does not run as it must:{listed}")


def require_same_as_before(mode: str, server: Drafting, scratch: Path) -> None:
    """``StageError`` where kept blocks are of a server that said something else of itself; they are dropped."""
    from specflow.serving.load.record import stated_settings

    said = {"version": server.version, **stated_settings(server.info)}
    path = _said_file(mode, scratch)
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != said:
        for kept in scratch.glob("*.json*"):
            kept.unlink()
        raise StageError(
            f"load: the server for mode {mode} is another than the one that measured the kept blocks. They are "
            "dropped: run the same command again"
        )
    path.write_text(json.dumps(said), encoding="utf-8")


def _said_file(mode: str, scratch: Path) -> Path:
    return scratch / f"server-{mode}.json"
