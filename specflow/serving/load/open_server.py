"""Which protocol a running server speaks, and what it says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from specflow.serving.load.generator import Endpoint
from specflow.serving.load.protocols import Chat
from specflow.targets.retrying import CONNECT_SECONDS, ServerError, failure_name, http_client, said


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A server that answers."""

    endpoint: Endpoint
    models: tuple[str, ...]
    info: Mapping[str, Any] | None
    """SGLang's ``/server_info``; none: it is another server."""


def open_server(url: str, *, model: str | None, api_key: str | None, timeout: float) -> Opened:
    """A chat endpoint. ``model``: none, the only one that is served. Raises :class:`ServerError`."""
    return asyncio.run(_open(url, model=model, api_key=api_key, timeout=timeout))


async def _open(url: str, *, model: str | None, api_key: str | None, timeout: float) -> Opened:
    async with http_client(url, api_key=api_key, timeout=CONNECT_SECONDS, concurrency=1) as http:
        try:
            response = await http.get("/v1/models")
            response.raise_for_status()
            models = tuple(str(entry["id"]) for entry in response.json()["data"])
            facts = await http.get("/server_info")
            info = facts.json() if facts.is_success else None
        except httpx.HTTPStatusError as error:
            raise ServerError(f"{url}/v1/models: {said(error.response, key=api_key)}") from error
        except httpx.HTTPError as error:
            raise ServerError(f"{url} does not answer ({failure_name(error)})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{url}/v1/models: expected a list of models; is this an OpenAI server?") from error
    if model is None and len(models) != 1:
        raise ServerError(f"{url} serves {', '.join(models) or 'nothing'}: name one with --model")
    if model is not None and model not in models:
        raise ServerError(f"{url} serves {', '.join(models) or 'nothing'}, not {model}")
    sglang = isinstance(info, Mapping) and "speculative_algorithm" in info
    dialect = Chat(model=model or models[0], sglang=sglang)
    return Opened(
        endpoint=Endpoint(url=url, dialect=dialect, timeout=timeout, api_key=api_key),
        models=models,
        info=info if sglang else None,
    )
