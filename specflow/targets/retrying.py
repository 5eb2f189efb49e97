"""How a server is reached, how long to wait before it is asked again, and what is said when it cannot be used."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
LONGEST_WAIT = 60.0
LONGEST_ASKED_WAIT = 600.0
"""A server may ask for more than we would wait by ourselves, but not for a day."""
CONNECT_SECONDS = 10.0
MESSAGE_LENGTH = 300
MOST_TIMEOUTS = 1
"""A request that the server works on for longer than the timeout is asked again once: it will take as long again."""


def http_client(
    base_url: str,
    *,
    api_key: str | None,
    timeout: float,
    concurrency: int,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Connections to one server, as many as there are requests in flight; ``transport``: in place of the network."""
    return httpx.AsyncClient(
        transport=transport,
        base_url=base_url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        trust_env=False,  # a proxy or a netrc file of the user's is no parameter of ours
    )


class ServerError(Exception):
    """The server as a whole cannot be used; the message names it."""

    def __init__(self, message: str, *, gone: bool = True) -> None:
        super().__init__(message)
        self.gone = gone
        """Nothing more will come from it; otherwise requests under way are worth waiting for."""


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


def retry_after(response: httpx.Response) -> float | None:
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


def failure_name(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def said(response: httpx.Response, *, key: str | None) -> str:
    """Status and the beginning of the text, without the key."""
    text = " ".join(response.text.split())
    if key:
        text = text.replace(key, "***")
    return f"HTTP {response.status_code} {text[:MESSAGE_LENGTH]}".strip()
