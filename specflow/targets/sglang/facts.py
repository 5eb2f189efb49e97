"""What a running SGLang server says of itself, and whether its hidden states are the features that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.targets.sglang.layers import CONVENTIONS, outputs_meant
from specflow.targets.sglang.weights import differing_tensor

TESTED_VERSION = "0.5.23"
PRECISIONS = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16"}


def architecture_of(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or ["unknown"])[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a server."""

    target: Path
    """Directory of the target."""
    config: Mapping[str, Any]
    """Its ``config.json``."""
    layer_ids: tuple[int, ...]
    """Layers whose output the server must return, increasing."""
    precision: str
    longest: int
    """Tokens of the longest document."""

    @property
    def architecture(self) -> str:
        return architecture_of(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Answers of ``/server_info`` and ``/model_info``."""

    server: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def version(self) -> str:
        return str(self.server.get("version"))

    @property
    def model_path(self) -> str:
        return str(self.model.get("model_path"))

    @property
    def chunk(self) -> int | None:
        """Tokens that one prefill pass takes at most; none: any number."""
        size = int(self.server.get("chunked_prefill_size") or 0)
        return size if size > 0 else None

    @property
    def page(self) -> int:
        return max(1, int(self.server.get("page_size") or 1))

    def precision(self, config: Mapping[str, Any]) -> str | None:
        """``fp32`` or ``bf16``; none if it is another or cannot be known. ``config``: of the target."""
        dtype = str(self.server.get("dtype")).removeprefix("torch.")
        if dtype == "auto":
            # A server makes float16 of float32 weights by itself; bfloat16 ones stay.
            return "bf16" if str(config.get("dtype") or config.get("torch_dtype")) == "bfloat16" else None
        return PRECISIONS.get(dtype)

    def layers(self, config: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Layers whose output it returns, in the order of its columns; none if it returns none or does not say."""
        method = str(self.server.get("aux_hidden_state_capture") or "").lower()
        ids = self.server.get("return_aux_hidden_state_layer_ids")
        if method not in CONVENTIONS or not isinstance(ids, Sequence) or not ids:
            return None
        return outputs_meant(
            architecture_of(config), method, [int(k) for k in ids], num_layers=int(config["num_hidden_layers"])
        )

    def differing_model(self, target: Path, config: Mapping[str, Any]) -> list[str]:
        """Why what it serves is not the target in a directory, as far as can be seen from here."""
        found = []
        served, ours = self.model.get("architectures"), config.get("architectures")
        if served and ours and list(served) != list(ours):
            found.append(f"it serves {', '.join(served)} ({self.model_path}), the target is {', '.join(ours)}")
        if self.server.get("quantization"):
            found.append(f"its weights are quantised ({self.server['quantization']}): they are not the target's")
        path = Path(self.model_path)
        if not found and path.is_dir() and path.resolve() != target.resolve():
            name = differing_tensor(target, path)
            if name:
                found.append(f"its weights ({path}) differ from the target's ({target}) in {name}")
        return found

    def problems(self, wanted: Wanted) -> list[str]:
        """Every reason why this server's hidden states are not the features that are asked for."""
        found = [*self.differing_model(wanted.target, wanted.config), *_of_the_layers(self, wanted)]
        if self.server.get("speculative_algorithm"):
            found.append(f"it speculates ({self.server['speculative_algorithm']}): capture needs a server without")
        served = self.precision(wanted.config)
        if served != wanted.precision:
            found.append(f"it computes in {served or self.server.get('dtype')}, {wanted.precision} is expected")
        limit = int(self.server.get("max_req_input_len") or 0)
        if limit and wanted.longest >= limit:
            found.append(f"the longest document has {wanted.longest} tokens, it takes fewer than {limit}")
        if self.chunk and wanted.longest > self.chunk:
            found.append(
                f"the longest document has {wanted.longest} tokens, it prefills in pieces of {self.chunk} and returns "
                "the rows of the last one only: start it with --chunked-prefill-size -1"
            )
        return found


def _of_the_layers(facts: ServerFacts, wanted: Wanted) -> list[str]:
    means = facts.layers(wanted.config)
    if means is None:
        return ["it returns no hidden states of named layers"]
    if set(wanted.layer_ids) <= set(means):
        return []
    ids, method = facts.server["return_aux_hidden_state_layer_ids"], facts.server["aux_hidden_state_capture"]
    return [
        f"it returns the outputs of layers {list(means)} (ids {list(ids)} of convention {method}), "
        f"{list(wanted.layer_ids)} are needed"
    ]
