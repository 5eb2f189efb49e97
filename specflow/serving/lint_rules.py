"""Lint rules that methods share; a layout puts them together. Each names its check as the layout's ``RULES`` do.

A rule says what it can without what it does not know: the parts that need no manifest come first, or are made
independent with :func:`each`. Exact keys, names and constants are promises of our exporter only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from specflow.serving.draft import Draft, Finding, NotKnown, Rule, Unknown, tensor_hash
from specflow.serving.layouts.common import LAYER_CONVENTION, rope_of

if TYPE_CHECKING:
    from torch import Tensor

ROPE_REL = 1e-9

Keys = tuple[Set[str], Set[str]]
"""Allowed keys of a section, and those of them that may be missing."""


Shapes = Callable[[Mapping[str, Any]], Mapping[str, tuple[int, ...]]]
"""``layout_shapes`` of a layout."""


class Exporting(Protocol):
    """``export_tensors`` of a layout."""

    def __call__(self, trained: Mapping[str, Tensor], *, dtype: str) -> Mapping[str, Tensor]: ...


def each(*parts: Rule) -> Rule:
    """All parts; one that cannot judge does not keep the others from it."""

    def check(draft: Draft) -> Iterator[Finding]:
        missing: list[str] = []
        for part in parts:
            try:
                yield from part(draft)
            except NotKnown as error:
                missing.append(error.what)
        if missing:
            raise NotKnown(" and ".join(dict.fromkeys(missing)))

    return check


def config_keys(top: Set[str], **sections: Keys) -> Rule:
    """Exactly these keys at the top and in each named section. Of our exports only: others may state more or less."""

    def check(draft: Draft) -> Iterator[Finding]:
        draft.require_ours()
        places: list[tuple[str, Set[str], Set[str], Set[str]]] = [("config.json", set(draft.config), top, set())]
        places += [(f"config.json {name}", set(draft.config.get(name) or {}), *keys) for name, keys in sections.items()]
        for where, found, allowed, optional in places:
            for key in sorted(found - allowed):
                unknown = {"found": "an unknown key", "expected": "no such key"}
                yield Finding(check="config-keys", where=f"{where} {key!r}", **unknown)
            for key in sorted(allowed - optional - found):
                yield Finding(check="config-keys", where=f"{where} {key!r}", found="no such key", expected="the key")

    return check


def constants(expected: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Rule:
    """Top-level values that are the same in every export of ours, by the export's config."""

    def check(draft: Draft) -> Iterator[Finding]:
        draft.require_ours()
        for key, value in expected(draft.config).items():
            if draft.config.get(key) != value:
                yield Finding(check="constants", where=key, found=repr(draft.config.get(key)), expected=repr(value))

    return check


def _of_the_target(draft: Draft) -> Iterator[Finding]:
    pairs = {
        "hidden_size": draft.target["hidden_size"],
        "vocab_size": draft.target["vocab_size"],
        "num_target_layers": draft.target["num_hidden_layers"],
    }
    for key, value in pairs.items():
        found = draft.config.get(key)
        if found != value and (draft.ours or found is not None):
            yield Finding(check="sizes", where=key, found=repr(found), expected=f"{value!r}, the target's")


def _of_the_drafter(draft: Draft) -> Iterator[Finding]:
    pairs = {
        "num_hidden_layers": draft.geometry["num_layers"],
        "num_attention_heads": draft.geometry["num_heads"],
        "num_key_value_heads": draft.geometry["num_kv_heads"],
        "head_dim": draft.geometry["head_dim"],
        "intermediate_size": draft.geometry["intermediate_size"],
        "rms_norm_eps": draft.geometry["rms_norm_eps"],
    }
    for key, value in pairs.items():
        if draft.config.get(key) != value:
            yield Finding(check="sizes", where=key, found=repr(draft.config.get(key)), expected=repr(value))


sizes = each(_of_the_drafter, _of_the_target)
"""Sizes against the drafter's geometry and the target: the draft shares the target's embedding and head."""


def layer_ids(section: str, key: str) -> Rule:
    """Ids at ``config[section][key]``: the manifest's, increasing, of layers that an engine can capture."""
    where = f"{section}.{key}"

    def order(draft: Draft) -> Iterator[Finding]:
        ids = list(draft.config[section][key])
        if any(b <= a for a, b in pairwise(ids)):
            yield Finding(check="layer-ids", where=where, found=repr(ids), expected="strictly increasing, unique ids")

    def capturable(draft: Draft) -> Iterator[Finding]:
        ids, layers = list(draft.config[section][key]), draft.target["num_hidden_layers"]
        if any(not 0 <= i < layers - 1 for i in ids):
            yield Finding(
                check="layer-ids",
                where=where,
                found=repr(ids),
                expected=f"ids in [0, {layers - 2}]: engines cannot capture the output of the last layer {layers - 1}",
            )

    def stated(draft: Draft) -> Iterator[Finding]:
        ids, own = list(draft.config[section][key]), list(draft.manifest["layer_ids"])
        if ids != own:
            yield Finding(check="layer-ids", where=where, found=repr(ids), expected=f"{own} (manifest)")
        if draft.manifest.get("layer_convention") != LAYER_CONVENTION:
            yield Finding(
                check="layer-ids",
                where="manifest layer_convention",
                found=repr(draft.manifest.get("layer_convention")),
                expected=repr(LAYER_CONVENTION),
            )

    return each(order, capturable, stated)


def positions(draft: Draft) -> Iterator[Finding]:
    found, needed = draft.config["max_position_embeddings"], draft.target["max_position_embeddings"]
    if found < needed:
        yield Finding(
            check="positions",
            where="max_position_embeddings",
            found=repr(found),
            expected=f">= {needed}, the target's: the engine opens the draft with the target's context length",
        )


def rope(draft: Draft) -> Iterator[Finding]:
    """Both forms present and equal to what was trained; where that is not known, the forms do not contradict."""
    if isinstance(draft.geometry, Unknown):
        yield from _rope_forms(draft)
    trained = rope_of(draft.geometry)
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


def _rope_forms(draft: Draft) -> Iterator[Finding]:
    try:
        rope_of(draft.config)
    except ValueError as error:
        yield Finding(check="rope", where="config.json", found=str(error), expected="one rotary base")


def dtype(export_tensors: Exporting) -> Rule:
    """Both keys of the config, and every tensor as the layout exports it; of others' drafts, one key."""

    def check(draft: Draft) -> Iterator[Finding]:
        stated = {key: draft.config.get(key) for key in ("dtype", "torch_dtype")}
        for key, found in stated.items():
            if found != draft.dtype and (draft.ours or not any(stated.values())):
                yield Finding(check="dtype", where=key, found=repr(found), expected=repr(draft.dtype))
        wanted = export_tensors(draft.trained, dtype=draft.dtype)
        for name in sorted(draft.tensors.keys() & wanted.keys()):
            found, want = (str(t.dtype).removeprefix("torch.") for t in (draft.tensors[name], wanted[name]))
            if found != want:
                yield Finding(check="dtype", where=name, found=found, expected=want)

    return check


def names(layout_shapes: Shapes) -> Rule:
    """Exactly the tensors that the config describes."""

    def check(draft: Draft) -> Iterator[Finding]:
        expected = layout_shapes(draft.config)
        for name in sorted(expected.keys() - draft.tensors.keys()):
            yield Finding(check="tensors", where=name, found="no such tensor", expected=f"shape {expected[name]}")
        for name in sorted(draft.tensors.keys() - expected.keys()):
            yield Finding(check="tensors", where=name, found="an extra tensor", expected="no such tensor")

    return check


def shapes(layout_shapes: Shapes) -> Rule:
    """The shapes that the config describes."""

    def check(draft: Draft) -> Iterator[Finding]:
        expected = layout_shapes(draft.config)
        for name in sorted(draft.tensors.keys() & expected.keys()):
            found = tuple(draft.tensors[name].shape)
            if found != expected[name]:
                yield Finding(check="shapes", where=name, found=str(found), expected=str(expected[name]))

    return check


def _finite(draft: Draft) -> Iterator[Finding]:
    import torch

    for name, tensor in sorted(draft.tensors.items()):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            yield Finding(check="values", where=name, found="non-finite values", expected="finite values")


def values(export_tensors: Exporting) -> Rule:
    """Each exported tensor is the trained one after the cast, bit for bit, and finite."""

    def trained(draft: Draft) -> Iterator[Finding]:
        wanted = export_tensors(draft.trained, dtype=draft.dtype)
        for name in sorted(draft.tensors.keys() & wanted.keys()):
            want, have = tensor_hash(wanted[name]), tensor_hash(draft.tensors[name])
            if have != want:
                yield Finding(
                    check="values", where=name, found=f"sha256 {have[:12]}",
                    expected=f"sha256 {want[:12]} of the trained tensor",
                )  # fmt: skip
        for name in sorted(wanted.keys() - draft.tensors.keys()):
            yield Finding(check="values", where=name, found="not exported", expected="every trained tensor")

    return each(_finite, trained)


def of_every_method(layout_shapes: Shapes, export_tensors: Exporting) -> dict[str, Rule]:
    """The rules that every layout has, by name: positions and tensors."""
    return {
        "positions": positions,
        "rope": rope,
        "dtype": dtype(export_tensors),
        "tensors": names(layout_shapes),
        "shapes": shapes(layout_shapes),
        "values": values(export_tensors),
    }
