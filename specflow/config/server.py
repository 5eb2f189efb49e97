"""``regenerate.server``: an OpenAI-compatible server (SGLang, vLLM) that runs the target."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from specflow.config.base import NOT_IN_KEY, InputFile, Section, wrong


def _base_url(url: str | None) -> str | None:
    """``http://host:port`` and ``http://host:port/v1/`` are the same: the address that ``/models`` is under."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise wrong("not the address of a server", found=url, expected="for example http://127.0.0.1:30000/v1")
    if parts.username or parts.password:
        raise wrong("a password in the address", found="a user name before @", expected="the key in api_key_file")
    return url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"


class ServerParams(Section):
    """Where the target is served. What cannot change an answer is not part of the artifact's key."""

    url: Annotated[str | None, AfterValidator(_base_url)] = Field(
        default=None,
        description="Address, for example http://127.0.0.1:30000/v1.",
        json_schema_extra=NOT_IN_KEY,
    )
    model: str | None = Field(default=None, description="Name of the model; none: the only one the server lists.")
    api_key_file: InputFile | None = Field(
        default=None, description="File with the key; it is sent to the server only.", json_schema_extra=NOT_IN_KEY
    )
    token_ids: bool = Field(
        default=True,
        description="Ask for the token ids (`return_token_ids`, SGLang and vLLM); without them the text is tokenised.",
    )
    concurrency: int = Field(default=64, ge=1, description="Requests in flight.", json_schema_extra=NOT_IN_KEY)
    retries: int = Field(
        default=6, ge=0, description="Tries after the first, for 429, 5xx and lost connections.",
        json_schema_extra=NOT_IN_KEY,
    )  # fmt: skip
    backoff: float = Field(
        default=1.0, gt=0, description="Seconds before the first retry; doubled for each further one, up to 60.",
        json_schema_extra=NOT_IN_KEY,
    )  # fmt: skip
    timeout: float = Field(
        default=600.0, gt=0, description="Seconds to wait for one answer.", json_schema_extra=NOT_IN_KEY
    )
