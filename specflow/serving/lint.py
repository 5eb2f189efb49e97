"""Lint of an exported draft: everything a serving engine would accept silently and serve badly.

SGLang ignores unknown tensors and does not check that every parameter was loaded, so a wrong export answers with
HTTP 200 and accepts nothing. The exporter therefore owns the check: exact names and shapes, an allow list of config
keys, ids and lengths against the target, both forms of the rotary base read back from the written file, and each
tensor compared with the trained one after the cast. All problems are reported together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.serving.layouts import dflash

if TYPE_CHECKING:
    from torch import Tensor

ROPE_REL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong with an export."""

    check: str
    where: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.where}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An export as read back from disk, beside what it must agree with."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    trained: Mapping[str, Tensor]
    """The trained weights, uncast."""
    geometry: Mapping[str, Any]
    """The drafter's own config."""
    manifest: Mapping[str, Any]
    target: Mapping[str, Any]
    """The target's Hugging Face config."""
    dtype: str
    token_ids: Mapping[str, int] | None = None
    """Ids of the target's tokens by name; none: not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    engine: str
    method: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    tensors: Mapping[str, Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "method": self.method,
            "passed": not self.findings,
            "checks": list(self.checks),
            "findings": [asdict(f) for f in self.findings],
            "tensors": dict(self.tensors),
        }


def tensor_hash(tensor: Tensor) -> str:
    """sha256 of the values, dtype and shape included."""
    import torch

    head = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(head + data.tobytes()).hexdigest()


def read_draft(
    directory: Path,
    *,
    trained: Mapping[str, Tensor],
    geometry: Mapping[str, Any],
    manifest: Mapping[str, Any],
    target: Mapping[str, Any],
    dtype: str,
    token_ids: Mapping[str, int] | None = None,
) -> Draft:
    """Read ``config.json`` and ``model.safetensors`` of an export."""
    from safetensors.torch import load_file

    return Draft(
        config=json.loads((directory / "config.json").read_text(encoding="utf-8")),
        tensors=load_file(str(directory / "model.safetensors")),
        trained=trained,
        geometry=geometry,
        manifest=manifest,
        target=target,
        dtype=dtype,
        token_ids=token_ids,
    )


def lint(draft: Draft, *, engine: str) -> Report:
    """Run every check of the method for ``engine``; raises ``ValueError`` for a pair without rules."""
    method = str(draft.manifest.get("method"))
    rules = _RULES.get((method, engine))
    if rules is None:
        raise ValueError(f"no lint rules for method {method!r} and engine {engine!r}; known: {sorted(_RULES)}")
    findings: list[Finding] = []
    for name, rule in rules.items():
        try:
            findings += list(rule(draft))
        except (KeyError, TypeError, ValueError) as error:  # a broken file must not hide the other problems
            findings.append(Finding(check=name, where="config.json", found=f"{error!r}", expected="a readable value"))
    tensors = {
        name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "sha256": tensor_hash(t)}
        for name, t in sorted(draft.tensors.items())
    }
    return Report(engine=engine, method=method, checks=tuple(rules), findings=tuple(findings), tensors=tensors)


def _config_keys(draft: Draft) -> Iterator[Finding]:
    method = draft.config.get("dflash_config") or {}
    for where, found, allowed, optional in (
        ("config.json", set(draft.config), dflash.CONFIG_KEYS, frozenset[str]()),
        ("config.json dflash_config", set(method), dflash.METHOD_KEYS, dflash.OPTIONAL_METHOD_KEYS),
    ):
        for key in sorted(found - allowed):
            yield Finding(check="config-keys", where=f"{where} {key!r}", found="an unknown key", expected="no such key")
        for key in sorted(allowed - optional - found):
            yield Finding(check="config-keys", where=f"{where} {key!r}", found="no such key", expected="the key")


def _constants(draft: Draft) -> Iterator[Finding]:
    layers = draft.config["num_hidden_layers"]
    expected = {
        "architectures": [dflash.ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "is_causal": False,
        "layer_types": ["full_attention"] * layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    for key, value in expected.items():
        if draft.config.get(key) != value:
            yield Finding(check="constants", where=key, found=repr(draft.config.get(key)), expected=repr(value))


def _sizes(draft: Draft) -> Iterator[Finding]:
    """Sizes against the drafter's geometry and the target: the draft shares the target's embedding and head."""
    pairs = {
        "num_hidden_layers": draft.geometry["num_layers"],
        "num_attention_heads": draft.geometry["num_heads"],
        "num_key_value_heads": draft.geometry["num_kv_heads"],
        "head_dim": draft.geometry["head_dim"],
        "intermediate_size": draft.geometry["intermediate_size"],
        "rms_norm_eps": draft.geometry["rms_norm_eps"],
        "hidden_size": draft.target["hidden_size"],
        "vocab_size": draft.target["vocab_size"],
        "num_target_layers": draft.target["num_hidden_layers"],
    }
    for key, value in pairs.items():
        if draft.config.get(key) != value:
            yield Finding(check="sizes", where=key, found=repr(draft.config.get(key)), expected=repr(value))


def _layer_ids(draft: Draft) -> Iterator[Finding]:
    ids, layers = list(draft.config["dflash_config"]["target_layer_ids"]), draft.target["num_hidden_layers"]
    where = "dflash_config.target_layer_ids"
    if ids != list(draft.manifest["layer_ids"]):
        yield Finding(
            check="layer-ids", where=where, found=repr(ids), expected=f"{list(draft.manifest['layer_ids'])} (manifest)"
        )
    if draft.manifest.get("layer_convention") != dflash.LAYER_CONVENTION:
        yield Finding(
            check="layer-ids",
            where="manifest layer_convention",
            found=repr(draft.manifest.get("layer_convention")),
            expected=repr(dflash.LAYER_CONVENTION),
        )
    if any(b <= a for a, b in pairwise(ids)):
        yield Finding(check="layer-ids", where=where, found=repr(ids), expected="strictly increasing, unique ids")
    if any(not 0 <= i < layers - 1 for i in ids):
        yield Finding(
            check="layer-ids",
            where=where,
            found=repr(ids),
            expected=f"ids in [0, {layers - 2}]: an engine cannot capture the output of the last layer {layers - 1}",
        )


def _block(draft: Draft) -> Iterator[Finding]:
    block, proposals = int(draft.manifest["block_size"]), int(draft.manifest["num_proposals"])
    for where, found in (
        ("block_size", draft.config["block_size"]),
        ("dflash_config.block_size", draft.config["dflash_config"]["block_size"]),
    ):
        if found != block or block != proposals + 1:
            yield Finding(check="block", where=where, found=repr(found), expected=f"{proposals + 1}, anchor included")


def _mask_token(draft: Draft) -> Iterator[Finding]:
    found, vocab = draft.config["dflash_config"]["mask_token_id"], draft.target["vocab_size"]
    where = "dflash_config.mask_token_id"
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < vocab:
        yield Finding(check="mask-token", where=where, found=repr(found), expected=f"an id in [0, {vocab})")
    if found != draft.manifest["mask_token_id"]:
        yield Finding(
            check="mask-token", where=where, found=repr(found), expected=f"{draft.manifest['mask_token_id']} (manifest)"
        )
    name = draft.config["dflash_config"].get("mask_token")
    if name != draft.manifest.get("mask_token"):
        yield Finding(
            check="mask-token", where="dflash_config.mask_token", found=repr(name),
            expected=f"{draft.manifest.get('mask_token')!r} (manifest)",
        )  # fmt: skip
    if name is not None and draft.token_ids is not None and draft.token_ids.get(name) != found:
        yield Finding(
            check="mask-token", where="dflash_config.mask_token", found=f"{name!r} with id {found}",
            expected=f"id {draft.token_ids.get(name)}, as in the target's tokenizer",
        )  # fmt: skip


def _positions(draft: Draft) -> Iterator[Finding]:
    found, needed = draft.config["max_position_embeddings"], draft.target["max_position_embeddings"]
    if found < needed:
        yield Finding(
            check="positions",
            where="max_position_embeddings",
            found=repr(found),
            expected=f">= {needed}, the target's: the engine opens the draft with the target's context length",
        )


def _rope(draft: Draft) -> Iterator[Finding]:
    """Both forms present and equal to what was trained."""
    trained = dflash.rope_of(draft.geometry)
    older, newer = draft.config.get("rope_theta"), (draft.config.get("rope_parameters") or {})
    forms = {"rope_theta": older, "rope_parameters.rope_theta": newer.get("rope_theta")}
    for where, found in forms.items():
        if found is None or abs(float(found) - trained["rope_theta"]) > ROPE_REL * trained["rope_theta"]:
            yield Finding(check="rope", where=where, found=repr(found), expected=repr(trained["rope_theta"]))
    if newer.get("rope_type", "default") != trained["rope_type"]:
        yield Finding(
            check="rope", where="rope_parameters.rope_type", found=repr(newer.get("rope_type")),
            expected=repr(trained["rope_type"]),
        )  # fmt: skip
    scaling, wanted = draft.config.get("rope_scaling"), {k: v for k, v in trained.items() if k != "rope_theta"}
    older_form = None if trained["rope_type"] == "default" else wanted
    if scaling != older_form:
        yield Finding(check="rope", where="rope_scaling", found=repr(scaling), expected=repr(older_form))
    rest = {k: v for k, v in newer.items() if k != "rope_theta"}
    if {"rope_type": "default", **rest} != wanted and rest.get("rope_type", "default") == trained["rope_type"]:
        yield Finding(check="rope", where="rope_parameters", found=repr(rest), expected=repr(wanted))


def _dtype(draft: Draft) -> Iterator[Finding]:
    for key in ("dtype", "torch_dtype"):
        if draft.config.get(key) != draft.dtype:
            yield Finding(check="dtype", where=key, found=repr(draft.config.get(key)), expected=repr(draft.dtype))
    for name, tensor in sorted(draft.tensors.items()):
        found = str(tensor.dtype).removeprefix("torch.")
        if found != draft.dtype:
            yield Finding(check="dtype", where=name, found=found, expected=draft.dtype)


def _names_and_shapes(draft: Draft) -> Iterator[Finding]:
    expected = dflash.layout_shapes(draft.config)
    for name in sorted(set(expected) - set(draft.tensors)):
        yield Finding(check="tensors", where=name, found="no such tensor", expected=f"shape {expected[name]}")
    for name in sorted(set(draft.tensors) - set(expected)):
        yield Finding(check="tensors", where=name, found="an extra tensor", expected="no such tensor")
    for name in sorted(set(draft.tensors) & set(expected)):
        if tuple(draft.tensors[name].shape) != expected[name]:
            yield Finding(
                check="shapes", where=name, found=str(tuple(draft.tensors[name].shape)), expected=str(expected[name])
            )


def _values(draft: Draft) -> Iterator[Finding]:
    """Each exported tensor is the trained one after the cast, bit for bit, and finite."""
    import torch

    kind = getattr(torch, draft.dtype)
    for name in sorted(set(draft.tensors) & set(draft.trained)):
        found = draft.tensors[name]
        if not bool(torch.isfinite(found).all()):
            yield Finding(check="values", where=name, found="non-finite values", expected="finite values")
        want = tensor_hash(draft.trained[name].to(kind))
        if tensor_hash(found) != want:
            yield Finding(
                check="values", where=name, found=f"sha256 {tensor_hash(found)[:12]}",
                expected=f"sha256 {want[:12]} of the trained tensor",
            )  # fmt: skip
    for name in sorted(set(draft.trained) - set(draft.tensors)):
        yield Finding(check="values", where=name, found="not exported", expected="every trained tensor")


Rule = Callable[[Draft], Iterator[Finding]]

_DFLASH: Mapping[str, Rule] = {
    "config-keys": _config_keys,
    "constants": _constants,
    "sizes": _sizes,
    "layer-ids": _layer_ids,
    "block": _block,
    "mask-token": _mask_token,
    "positions": _positions,
    "rope": _rope,
    "dtype": _dtype,
    "tensors": _names_and_shapes,
    "values": _values,
}

_RULES: Mapping[tuple[str, str], Mapping[str, Rule]] = {("dflash", "sglang-0.5.23"): _DFLASH}
