"""A server that was looked at and found fit, as every process that captures needs to know it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from specflow.targets.retrying import Retrying, ServerError
from specflow.targets.sglang.client import SglangClient
from specflow.targets.sglang.facts import ServerFacts, Wanted
from specflow.targets.sglang.launching import capture_arguments, shell

BYTES_PER_VALUE = 64
"""Of a reply under way: about 20 as text, 32 as an object in a list, 4 in the array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where and how to ask."""

    url: str
    api_key: str | None
    retrying: Retrying
    timeout: float
    concurrency: int

    def client(self) -> SglangClient:
        return SglangClient(
            self.url,
            api_key=self.api_key,
            retrying=self.retrying,
            timeout=self.timeout,
            concurrency=self.concurrency,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureServer:
    """Plain values: it travels to worker processes."""

    access: Access
    layer_ids: tuple[int, ...]
    """Layers whose output it returns, in the order of its columns."""
    precision: str
    version: str
    page: int
    tokens: int
    """In flight at most: what memory allows, and what one prefill pass takes, so that it has whole documents."""

    def share(self, workers: int) -> FeatureServer:
        """The part of one of ``workers`` processes in what the server and the memory allow."""
        access = replace(self.access, concurrency=max(1, self.access.concurrency // workers))
        return replace(self, access=access, tokens=self.tokens // workers)


def layers_to_ask(layer_ids: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """Those wanted, and the last but one, from which ``last_hidden`` is computed."""
    return tuple(sorted({*layer_ids, num_layers - 2}))


def read_facts(access: Access) -> ServerFacts:
    """What the server says of itself; raises :class:`ServerError`."""

    async def read() -> ServerFacts:
        async with access.client() as client:
            return await client.facts()

    return asyncio.run(read())


def fit_server(
    access: Access, facts: ServerFacts, wanted: Wanted, *, memory_bytes: int, workers: int = 1
) -> FeatureServer:
    """The server, if its features are those of the target; raises :class:`ServerError` with every reason against."""
    problems = facts.problems(wanted)
    layers = facts.layers(wanted.config) or wanted.layer_ids
    per_token = BYTES_PER_VALUE * len(layers) * int(wanted.config["hidden_size"])
    affordable = memory_bytes // per_token
    tokens = min(affordable, facts.chunk or affordable)
    if wanted.longest > tokens // workers and not (facts.chunk and wanted.longest > facts.chunk):
        problems.append(
            f"the longest document has {wanted.longest} tokens, {per_token} bytes each under way, and {workers} of it "
            f"do not fit {memory_bytes / 1e9:.2f} GB (sglang.memory_gb) or one prefill pass: raise them, or ask with "
            "fewer workers"
        )
    if problems:
        said = "".join(f"\n  - {problem}" for problem in problems)
        raise ServerError(
            f"the server at {access.url} cannot give the target's features:{said}\n"
            f"one that can is started with: {shell(capture_arguments(wanted))}"
        )
    return FeatureServer(
        access=access,
        layer_ids=layers,
        precision=wanted.precision,
        version=facts.version,
        page=facts.page,
        tokens=tokens,
    )
