"""A client of an OpenAI-compatible server that outlives its bad moments.

A request is tried again after 429, a 5xx, a lost connection or a reply that is no completion, and once after a
timeout; waits grow by doubling, with jitter, and ``Retry-After`` is obeyed. What another try cannot help is an error
at once.
The key is sent to the server and appears in no message.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import httpx

RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
NOT_ALLOWED = frozenset({401, 403, 404, 405})
LONGEST_WAIT = 60.0
LONGEST_ASKED_WAIT = 600.0
"""A server may ask for more than we would wait by ourselves, but not for a day."""
CONNECT_SECONDS = 10.0
MESSAGE_LENGTH = 300
MOST_TIMEOUTS = 1
"""A request that the server works on for longer than the timeout is asked again once: it will take as long again."""


class ServerError(Exception):
    """The server as a whole cannot be used; the message names it."""

    def __init__(self, message: str, *, gone: bool = True) -> None:
        super().__init__(message)
        self.gone = gone
        """Nothing more will come from it; otherwise requests under way are worth waiting for."""


class RequestRefused(Exception):
    """This request cannot be answered; others may be."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """``retries`` further tries; the first wait is about ``backoff`` seconds."""

    retries: int
    backoff: float

    def wait(self, attempt: int, asked: float | None) -> float:
        """Seconds before try ``attempt + 1``: at least what the server asked for, and never the same for all."""
        if asked is not None:
            return min(asked, LONGEST_ASKED_WAIT) + random.uniform(0, self.backoff)
        return random.uniform(0.5, 1.0) * min(self.backoff * 2.0**attempt, LONGEST_WAIT)


class OpenAIClient:
    """``async with OpenAIClient(...) as client``; counts the tries that failed in ``retried``.

    After ``end()`` nothing is tried again: requests under way are answered, or raise :class:`ServerError`.
    """

    def __init__(self, url: str, *, api_key: str | None, retrying: Retrying, timeout: float, concurrency: int) -> None:
        self.url, self.retried = url, 0
        self._end = asyncio.Event()
        self._key, self._retrying = api_key, retrying
        self._http = httpx.AsyncClient(
            base_url=f"{url}/",
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            trust_env=False,  # a proxy or a netrc file of the user's is no parameter of ours
        )

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
            raise ServerError(f"{self.url}/models: {self._said(error.response)}") from error
        except httpx.HTTPError as error:
            raise ServerError(f"{self.url} does not answer ({_name(error)})") from error
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
                problem = self._said(response)
                if response.status_code in NOT_ALLOWED:
                    raise ServerError(f"{self.url}/chat/completions: {problem}")
                if response.status_code not in RETRIED:
                    raise RequestRefused("server_refused", problem)
                asked = _retry_after(response)
            except httpx.HTTPError as error:
                problem = _name(error)
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

    def _said(self, response: httpx.Response) -> str:
        text = " ".join(response.text.split())
        if self._key:
            text = text.replace(self._key, "***")
        return f"HTTP {response.status_code} {text[:MESSAGE_LENGTH]}".strip()

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


def _retry_after(response: httpx.Response) -> float | None:
    """``Retry-After`` in seconds: a number or a date; none if absent or unreadable."""
    text = response.headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _name(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
