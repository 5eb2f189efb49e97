"""An SGLang server that a stage asks: one that runs already, or one that the stage starts and ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo

from specflow.config.base import NOT_IN_KEY, InputFile, Section, wrong

OWN_FLAGS = (
    "--model-path", "--model", "--host", "--port", "--dtype", "--enable-return-hidden-states",
    "--return-hidden-states-mode", "--enable-return-aux-hidden-states", "--return-aux-hidden-state-layer-ids",
    "--api-key", "--quantization",
)  # fmt: skip
"""What the stage decides, or what would make the features those of another model."""
OWN_PREFIX = "--speculative-"
DRAFT_FLAGS = frozenset(
    {
        "--model-path", "--model", "--host", "--port", "--dtype", "--api-key", "--quantization",
        "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-draft-model",
        "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
        "--speculative-dflash-block-size", "--speculative-dspark-block-size", "--speculative-token-map",
    }
)  # fmt: skip
"""What the drafter's manifest decides, and what would make the target another one."""


def root_url(url: str | None) -> str | None:
    """``http://host:port/v1/`` is ``http://host:port``: SGLang's own interface is at the root."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise wrong("not the address of a server", found=url, expected="for example http://127.0.0.1:30000")
    if parts.username or parts.password:
        raise wrong("a password in the address", found="a user name before @", expected="the key in api_key_file")
    return url.rstrip("/").removesuffix("/v1")


RootUrl = Annotated[str, AfterValidator(root_url)]


def _interpreter(path: Path | None, info: ValidationInfo) -> Path | None:
    """Links are kept: the link of a virtual environment tells Python which environment it belongs to."""
    base = (info.context or {}).get("base")
    if path is None or base is None:
        return path
    path = Path(os.path.normpath(base / path.expanduser()))
    if not os.access(path, os.X_OK) or path.is_dir():
        raise wrong(
            "no such program", found=path, expected="the python of an environment with SGLang",
            hint=f"relative paths start at {base}",
        )  # fmt: skip
    return path


def _not_of_capture(flags: tuple[str, ...]) -> tuple[str, ...]:
    return _without(flags, lambda name: name in OWN_FLAGS or name.startswith(OWN_PREFIX))


def _not_of_the_manifest(flags: tuple[str, ...]) -> tuple[str, ...]:
    return _without(flags, lambda name: name in DRAFT_FLAGS)


def _without(flags: tuple[str, ...], ours: Callable[[str], bool]) -> tuple[str, ...]:
    found = [name for flag in flags for name in [flag.partition("=")[0]] if ours(name)]
    if found:
        raise wrong("flags that the stage sets itself", found=", ".join(found), expected="other flags of SGLang")
    return flags


class SglangServer(Section):
    """A server: `url` of one that runs, or `python` to start one for the stage."""

    url: Annotated[str | None, AfterValidator(root_url)] = Field(
        default=None, description="Address of a running server.", json_schema_extra=NOT_IN_KEY
    )
    python: Annotated[Path | None, AfterValidator(_interpreter)] = Field(
        default=None,
        description="Python of an environment with SGLang; the stage starts the server and ends it.",
        json_schema_extra=NOT_IN_KEY,
    )
    launch_flags: tuple[str, ...] = Field(
        default=(), description="Further flags of `sglang.launch_server`, as [--tp-size, '8']."
    )
    api_key_file: InputFile | None = Field(
        default=None, description="File with the key; it is sent to the server only.", json_schema_extra=NOT_IN_KEY
    )
    retries: int = Field(
        default=6, ge=0, description="Tries after the first, for lost connections, 429 and 5xx.",
        json_schema_extra=NOT_IN_KEY,
    )  # fmt: skip
    backoff: float = Field(
        default=1.0, gt=0, description="Seconds before the first retry; doubled for each further one, up to 60.",
        json_schema_extra=NOT_IN_KEY,
    )  # fmt: skip
    timeout: float = Field(
        default=600.0, gt=0, description="Seconds to wait for one answer.", json_schema_extra=NOT_IN_KEY
    )
    start_timeout: float = Field(
        default=1200.0, gt=0, description="Seconds that a server may take to start.", json_schema_extra=NOT_IN_KEY
    )


class SglangParams(SglangServer):
    """The server of engine `sglang`: `url` of one that runs, or `python` to start one for the stage."""

    launch_flags: Annotated[tuple[str, ...], AfterValidator(_not_of_capture)] = Field(
        default=(), description="Further flags of `sglang.launch_server`, as [--tp-size, '8']."
    )
    memory_gb: float = Field(
        default=2.0, gt=0, description="Memory for answers under way; it bounds the tokens in flight.",
        json_schema_extra=NOT_IN_KEY,
    )  # fmt: skip
    concurrency: int = Field(default=32, ge=1, description="Requests in flight, at most.", json_schema_extra=NOT_IN_KEY)


class BaselineServer(Section):
    """The same server without a drafter."""

    url: Annotated[str | None, AfterValidator(root_url)] = Field(
        default=None,
        description="Address of one that runs, where `sglang.url` names the other; without it the stage starts one.",
        json_schema_extra=NOT_IN_KEY,
    )
    launch_flags: Annotated[tuple[str, ...], AfterValidator(_not_of_capture)] = Field(
        default=(), description="Further flags beside those of `sglang.launch_flags` that do not speculate."
    )


class DraftServer(SglangServer):
    """The server that drafts: `url` of one that runs, or `python` to start one for the stage."""

    launch_flags: Annotated[tuple[str, ...], AfterValidator(_not_of_the_manifest)] = Field(
        default=(),
        description="Further flags of `sglang.launch_server`, as [--tp-size, '8']; the drafter's own are generated.",
    )
