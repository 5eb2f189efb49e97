"""A client of an OpenAI-compatible server that outlives its bad moments.

A request is tried again after 429, a 5xx, a lost connection or a reply that is no completion, and once after a
timeout; waits grow by doubling, with jitter, and ``Retry-After`` is obeyed. What another try cannot help is an error
at once.
The key is sent to the server and appears in no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import httpx

from specflow.targets.retrying import (
    CONNECT_SECONDS,
    MOST_TIMEOUTS,
    RETRIED,
    Retrying,
    ServerError,
    failure_name,
    http_client,
    retry_after,
    said,
)

NOT_ALLOWED = frozenset({401, 403, 404, 405})


class RequestRefused(Exception):
    """This request cannot be answered; others may be."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class OpenAIClient:
    """``async with OpenAIClient(...) as client``; counts the tries that failed in ``retried``.

    After ``end()`` nothing is tried again: requests under way are answered, or raise :class:`ServerError`.
    """

    def __init__(self, url: str, *, api_key: str | None, retrying: Retrying, timeout: float, concurrency: int) -> None:
        self.url, self.retried = url, 0
        self._end = asyncio.Event()
        self._key, self._retrying = api_key, retrying
        self._http = http_client(f"{url}/", api_key=api_key, timeout=timeout, concurrency=concurrency)

    def end(self) -> None:
        self._end.set()

    @property
    def ending(self) -> bool:
        return self._end.is_set()

    async def models(self) -> list[str]:
        """Names of the models that are served. One try; raises :class:`ServerError`."""
        try:
            response = await self._http.get("models", timeout=CONNECT_SECONDS)
            response.raise_for_status()
            return [str(entry["id"]) for entry in response.json()["data"]]
        except httpx.HTTPStatusError as error:
            raise ServerError(f"{self.url}/models: {said(error.response, key=self._key)}") from error
        except httpx.HTTPError as error:
            raise ServerError(f"{self.url} does not answer ({failure_name(error)})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(
                f"{self.url}/models: expected a list of models; is this an OpenAI-compatible server?"
            ) from error

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat completion, not streamed. Raises :class:`RequestRefused` or :class:`ServerError`."""
        attempt = slow = 0
        while True:
            asked: float | None = None
            try:
                response = await self._http.post("chat/completions", json=body)
                if response.is_success:
                    return _completion(response)
                problem = said(response, key=self._key)
                if response.status_code in NOT_ALLOWED:
                    raise ServerError(f"{self.url}/chat/completions: {problem}")
                if response.status_code not in RETRIED:
                    raise RequestRefused("server_refused", problem)
                asked = retry_after(response)
            except httpx.HTTPError as error:
                problem = failure_name(error)
                slow += isinstance(error, httpx.ReadTimeout)
            except ValueError as error:
                problem = f"a reply that is no completion ({error})"
            if attempt >= self._retrying.retries or slow > MOST_TIMEOUTS:
                raise await self._given_up(problem, attempt + 1)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), self._retrying.wait(attempt, asked))
            if self.ending:
                raise ServerError(f"{self.url}: not tried again: {problem}", gone=False)
            self.retried += 1
            attempt += 1

    async def _given_up(self, problem: str, tries: int) -> Exception:
        """After the last try: is it the request, or the server?"""
        what = f"{tries} tries, the last: {problem}"
        if problem.startswith("HTTP 429"):
            return ServerError(f"{self.url} is overloaded: {what}; lower server.concurrency", gone=False)
        try:
            await self.models()
        except ServerError:
            return ServerError(f"{self.url} does not answer any more: {what}")
        return RequestRefused("server_failed", what)

    async def __aenter__(self) -> OpenAIClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()


def _completion(response: httpx.Response) -> dict[str, Any]:
    value = response.json()
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise ValueError("no choice with a message")
    return dict(value)
