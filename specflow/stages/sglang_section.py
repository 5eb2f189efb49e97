"""What the sections of stages that ask an SGLang server have in common."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.config.sglang import SglangServer
from specflow.stages.api_key import read_api_key
from specflow.stages.contract import Problem


def check_section(section: SglangServer) -> Iterator[Problem]:
    """What can be known before anything runs."""
    if (section.url is None) == (section.python is None):
        yield Problem(
            where="sglang",
            found="both url and python" if section.url else "neither url nor python",
            expected="url of a running server, or python of an environment with SGLang",
        )
    if section.url is not None and section.launch_flags:
        yield Problem(
            where="sglang.launch_flags",
            found=" ".join(section.launch_flags),
            expected="none: the server at sglang.url runs already",
        )


def api_key_of(section: SglangServer, *, stage: str) -> str | None:
    """The key in the file that the section names; raises ``StageError`` if there is none in it."""
    return read_api_key(section.api_key_file, option=f"{stage}: sglang.api_key_file")
