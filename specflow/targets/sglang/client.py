"""SGLang's own interface: what the server is, and hidden states and answers of exact token ids.

A request is tried again after a lost connection, 429 or a 5xx, with growing waits. A reply that arrived whole but says
something wrong is never asked for again: that would only hide what is wrong.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import httpx
import orjson

from specflow.targets.retrying import (
    MOST_TIMEOUTS,
    RETRIED,
    Retrying,
    ServerError,
    failure_name,
    http_client,
    retry_after,
    said,
)
from specflow.targets.sglang.facts import ServerFacts

FACTS_SECONDS = 60.0


class SglangClient:
    """``async with SglangClient(...) as client``; counts the tries that failed in ``retried``."""

    def __init__(self, url: str, *, api_key: str | None, retrying: Retrying, timeout: float, concurrency: int) -> None:
        self.url, self.retried = url, 0
        self._key, self._retrying = api_key, retrying
        self._http = http_client(url, api_key=api_key, timeout=timeout, concurrency=concurrency)

    async def facts(self) -> ServerFacts:
        """What the server says of itself. One try; raises :class:`ServerError`."""
        return ServerFacts(server=await self._get("/server_info"), model=await self._get("/model_info"))

    async def hidden_states(self, ids: Sequence[int]) -> dict[str, Any]:
        """The reply for one prompt, with ``meta_info.hidden_states``. Raises :class:`ServerError`."""
        body = {
            "input_ids": list(ids),
            # With none the server returns no rows either: it cuts the list of them to the number of new tokens.
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_hidden_states": True,
            "return_prompt_token_ids": True,
        }
        return await self._generate(body)

    async def greedy(self, ids: Sequence[int], *, max_new_tokens: int, end_ids: Iterable[int]) -> dict[str, Any]:
        """The reply with ``output_ids``, up to one of ``end_ids``, and the counters of speculation in ``meta_info``."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {
                "max_new_tokens": max_new_tokens,
                "temperature": 0.0,
                "stop_token_ids": sorted(end_ids),
            },
        }
        return await self._generate(body)

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        attempt = slow = 0
        while True:
            asked: float | None = None
            try:
                # A prefix that the server still knows has no rows, and is summed in another order: the key, new for
                # every try, keeps it apart.
                response = await self._http.post("/generate", json={**body, "extra_key": uuid.uuid4().hex})
                if response.is_success:
                    return self._reply(response)
                problem = said(response, key=self._key)
                if response.status_code not in RETRIED:
                    raise ServerError(f"{self.url}/generate: {problem}")
                asked = retry_after(response)
            except httpx.HTTPError as error:
                problem = failure_name(error)
                slow += isinstance(error, httpx.ReadTimeout)
            if attempt >= self._retrying.retries or slow > MOST_TIMEOUTS:
                raise ServerError(f"{self.url} does not answer any more: {attempt + 1} tries, the last: {problem}")
            await asyncio.sleep(self._retrying.wait(attempt, asked))
            self.retried += 1
            attempt += 1

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            response = await self._http.get(path, timeout=FACTS_SECONDS)
            response.raise_for_status()
            value = orjson.loads(response.content)
        except httpx.HTTPStatusError as error:
            raise ServerError(
                f"{self.url}{path}: {said(error.response, key=self._key)}; is this an SGLang server?"
            ) from error
        except httpx.HTTPError as error:
            raise ServerError(f"{self.url} does not answer ({failure_name(error)})") from error
        except orjson.JSONDecodeError as error:
            raise ServerError(f"{self.url}{path}: expected JSON; is this an SGLang server?") from error
        return value if isinstance(value, dict) else {}

    def _reply(self, response: httpx.Response) -> dict[str, Any]:
        try:
            value = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise ServerError(f"{self.url}/generate: a reply that is no JSON ({error})") from error
        if not isinstance(value, dict) or not isinstance(value.get("meta_info"), dict):
            raise ServerError(f"{self.url}/generate: a reply without meta_info; is this an SGLang server?")
        return value

    async def __aenter__(self) -> SglangClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()
