"""How a draft directory is served: the command line from its manifest, and what the server must then say of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specflow.drafters.files import drafter_directory
from specflow.serving.draft_directory import manifest_of
from specflow.serving.launch import (
    CAP_ACCEPT,
    COMPACT,
    MODE_VARIABLE,
    STATIC,
    launch_arguments,
    launch_flags,
    scheduling,
)
from specflow.serving.schedule_files import SECTION
from specflow.serving.settings import Setting, effective_settings, expected_settings
from specflow.targets.retrying import Retrying
from specflow.targets.sglang.client import SglangClient

USUAL_TIMEOUT = 60.0
UNIFORM_BACKENDS = frozenset({"torch_native", "intel_amx", "triton"})
"""Attention backends of SGLang 0.5.23 that take a round for the same number of rows of every request: they do not read
its ``ragged_verify_layout``. A CPU has only such."""
BACKEND_FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One way to serve a draft."""

    flags: Mapping[str, str]
    """Generated from the manifest."""
    further: tuple[str, ...]
    """The user's own."""
    expected: Mapping[str, str]
    """Settings that the server must state."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the server's own, beside those of this process."""
    notes: tuple[str, ...] = ()
    """What to know before."""

    @property
    def arguments(self) -> list[str]:
        """What follows ``sglang.launch_server``, without host and port."""
        return [*launch_arguments(self.flags), *self.further]


def plan_serving(
    draft: Path,
    target: Path,
    *,
    dtype: str | None = None,
    further: Sequence[str] = (),
    mode: str = STATIC,
    environment: Mapping[str, str] | None = None,
) -> Serving:
    """For a draft directory or the artifact that holds one; ``dtype``: of the server, none: the draft's.

    ``mode``: how much of a block is verified (``launch.scheduling``); ``environment``: further variables.

    Raises ``ValueError`` where there is no manifest and the config does not suffice, and for flags that the manifest
    decides, and for a mode that the drafter, or the server, cannot be served in.
    """
    place = drafter_directory(draft).resolve()
    manifest = manifest_of(place)
    stated = dtype or str(manifest["dtype"])
    flags = launch_flags(manifest, target_path=str(target.resolve()), draft_path=str(place), dtype=stated)
    scheduled = scheduling(manifest, mode=mode, draft_path=str(place))
    flags |= scheduled.flags
    check_further(flags, further)
    _check_ragged(mode, further)
    twice = sorted({*(environment or {})} & {MODE_VARIABLE})
    if twice:
        raise ValueError(f"expected the mode by --mode, found the variable {twice[0]}")
    return Serving(
        flags=flags,
        further=tuple(further),
        expected=expected_settings(flags, manifest),
        environment={**(environment or {}), **scheduled.environment},
        notes=tuple(_notes(manifest, mode)),
    )


def _check_ragged(mode: str, further: Sequence[str]) -> None:
    """``ValueError`` where ``compact`` would end the server's scheduler at the first round that is cut."""
    if mode != COMPACT:
        return
    given = values_of(further)
    without = [f"--device {given['--device']}"] if given.get("--device") == "cpu" else []
    without += [f"{flag} {given[flag]}" for flag in BACKEND_FLAGS if given.get(flag) in UNIFORM_BACKENDS]
    if without:
        raise ValueError(
            f"mode {COMPACT!r} with {', '.join(without)}: expected an attention backend that verifies as many rows of "
            "each request as it was granted (flashinfer, fa3, fa4, trtllm_mha); this one attends the same number of "
            f"every request and fails at the first round that is cut; {CAP_ACCEPT!r} runs with any"
        )


def values_of(words: Sequence[str]) -> dict[str, str]:
    """Flags with their first value, given as ``--flag value`` or ``--flag=value``."""
    found: dict[str, str] = {}
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        flag, sign, value = word.partition("=")
        if flag.startswith("--"):
            found[flag] = value if sign else after
    return found


def _notes(manifest: Mapping[str, Any], mode: str) -> Iterator[str]:
    if mode == CAP_ACCEPT and "costs" not in (manifest.get(SECTION) or {}):
        yield "no costs (flow `release`): rows cost nothing then, so every proposal may be accepted"
    elif mode != STATIC:
        conditions = manifest[SECTION]["costs"].get("conditions") or {}
        engine = (conditions.get("engine") or {}).get("name", "an unknown")
        if engine != "sglang":
            yield (
                f"the costs were measured with the {engine} engine: what is verified is chosen by its costs, not by "
                "this server's; its own are measured with profile.sglang"
            )


def plan_baseline(target: Path, *, dtype: str, further: Sequence[str] = ()) -> Serving:
    """The same server without a drafter; of ``further``, what tells how to speculate is left out."""
    flags = {"--model-path": str(target.resolve()), "--dtype": dtype}
    expected = {"model_path": flags["--model-path"], "dtype": dtype, "speculative_algorithm": "None"}
    return Serving(flags=flags, further=tuple(without_speculation(further)), expected=expected)


def without_speculation(words: Sequence[str]) -> list[str]:
    """Flags and their values, without those that begin with ``--speculative``."""
    found, ours = [], True
    for word in words:
        if word.startswith("--"):
            ours = not word.startswith("--speculative")
        if ours:
            found.append(word)
    return found


def check_further(flags: Mapping[str, Any], further: Sequence[str]) -> None:
    """``ValueError`` where a further flag is one that is generated."""
    twice = sorted({*values_of(further)} & {*flags, "--host", "--port"})
    if twice:
        raise ValueError(f"expected other flags than those that are generated, found {', '.join(twice)}")


def read_settings(serving: Serving, url: str, *, api_key: str | None = None) -> list[Setting]:
    """The effective settings of a server; raises ``ServerError`` where it does not answer."""

    async def read() -> Mapping[str, Any]:
        retrying = Retrying(retries=0, backoff=1.0)
        async with SglangClient(
            url, api_key=api_key, retrying=retrying, timeout=USUAL_TIMEOUT, concurrency=1
        ) as client:
            return (await client.facts()).server

    return effective_settings(asyncio.run(read()), serving.expected)
