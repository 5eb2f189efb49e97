"""Addresses of servers on the command line."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from specflow.cli.work import bad_input
from specflow.config.sglang import root_url


def server_root(url: str, source: str) -> str:
    """The address that SGLang's own interface is under; raises ``InputErrors`` naming ``source`` for no address."""
    try:
        found = root_url(url)
    except PydanticCustomError as error:
        told = error.context or {}
        raise bad_input(source, error.message(), told["expected"], found=told["found"]) from error
    assert found is not None
    return found
