"""What a server really runs with, against what the drafter's manifest asks for.

An engine may change what it was told: it takes a draft's own block size, falls back to another algorithm, or was
started by somebody else. What it accepted then is worth nothing, or measures another drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.targets.sglang.weights import differing_tensor

NUM_DRAFT_TOKENS = "speculative_num_draft_tokens"
PATHS = ("model_path", "speculative_draft_model_path")
TOKEN_MAP = "speculative_token_map"
NOTHING = ("None", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One effective setting, by its name in ``/server_info``."""

    name: str
    expected: str
    found: str

    @property
    def same(self) -> bool:
        if self.name == TOKEN_MAP:
            return _same_file(self.expected, self.found)
        return _same_weights(self.expected, self.found) if self.name in PATHS else self.expected == self.found

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, found {self.found}"


def _same_weights(expected: str, found: str) -> bool:
    """Two places of the same weights; one that is not on this machine cannot be looked into, and may be the same."""
    ours, theirs = Path(expected), Path(found)
    if found in NOTHING:
        return False
    return not theirs.is_dir() or ours.resolve() == theirs.resolve() or differing_tensor(ours, theirs) is None


def _same_file(expected: str, found: str) -> bool:
    """As ``_same_weights``, for one file."""
    if found in NOTHING:
        return False
    return not Path(found).is_file() or Path(expected).read_bytes() == Path(found).read_bytes()


def expected_settings(flags: Mapping[str, str], manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a server started with the generated ``flags`` must state, by its names.

    The verify window of a chain is the anchor and the proposals, whichever flag an algorithm is told that by.
    """
    stated = {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items() if value}
    return {NUM_DRAFT_TOKENS: str(int(manifest["num_proposals"]) + 1), **stated}


def effective_settings(server: Mapping[str, Any], expected: Mapping[str, str]) -> list[Setting]:
    """Expected and found, in the order of the flags; ``server``: the answer of ``/server_info``."""
    return [
        Setting(name=name, expected=value, found=str(server.get(name)).removeprefix("torch."))
        for name, value in expected.items()
    ]


def differing(settings: list[Setting]) -> list[Setting]:
    return [setting for setting in settings if not setting.same]
