"""DSpark drafter -> the directory that SGLang 0.5.23 loads as ``Qwen3DSparkModel``.

The backbone is DFlash's, key for key. Beside it:

- ``block_size`` means the number of proposals, for DFlash the verify window. It stands at the top level and in both
  nested sections, which are merged.
- ``markov_rank``, ``markov_head_type``, ``sample_from_anchor`` and the keys of the confidence head are read by the
  model from the top level only and by the worker from the nested section first; both have them.
- ``markov_head.*`` and ``confidence_head.*`` have no prefix: with ``model.`` in front, a confidence head is loaded and
  then reported missing. A missing ``markov_head`` is not reported at all; the lint is what finds it.
- The confidence head is fp32, whatever the dtype of the rest, as the engine holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specflow.serving import lint_rules
from specflow.serving.layouts import dflash, dflash_reading, dflash_rules, dspark_rules
from specflow.serving.layouts.common import cast_tensors

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "Qwen3DSparkModel"
ARCHITECTURES = (ARCHITECTURE, "DSparkDraftModel")
UNPREFIXED = ("markov_head.", "confidence_head.")
"""Heads that the engine finds only without ``model.``."""
HEAD_KEYS = frozenset(
    {
        "markov_rank", "markov_head_type", "sample_from_anchor", "confidence_head_with_markov",
        "enable_confidence_head",
    }
)  # fmt: skip
CONFIG_KEYS = dflash.CONFIG_KEYS | HEAD_KEYS | {"dspark_config"}
METHOD_KEYS = HEAD_KEYS | {"block_size"}


def layout_config(
    geometry: Mapping[str, Any], manifest: Mapping[str, Any], target: Mapping[str, Any], *, dtype: str
) -> dict[str, Any]:
    """As ``dflash.layout_config``; ``ValueError`` also where rows, proposals and anchor row do not fit together."""
    proposals = _proposals(manifest)
    own = dspark_rules.head_keys(geometry)
    if own["sample_from_anchor"] != manifest["sample_from_anchor"]:
        raise ValueError(
            f"expected sample_from_anchor {own['sample_from_anchor']} as the drafter's, found "
            f"{manifest['sample_from_anchor']} in its manifest"
        )
    backbone = dflash.layout_config(geometry, {**manifest, "block_size": proposals}, target, dtype=dtype)
    return {
        **backbone,
        "architectures": [ARCHITECTURE],
        **own,
        "dspark_config": {**own, "block_size": proposals},
    }


def layout_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Exact names and shapes of the checkpoint that ``config`` describes."""
    hidden, vocab, rank = config["hidden_size"], config["vocab_size"], config["markov_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        **dflash.layout_shapes(config),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
    }
    if config["markov_head_type"] == "gated":
        shapes |= {"markov_head.gate_proj.weight": (rank, hidden + rank), "markov_head.gate_proj.bias": (rank,)}
    if config["markov_head_type"] == "rnn":
        shapes |= {
            "markov_head.joint_proj.weight": (3 * rank, 2 * rank + hidden),
            "markov_head.joint_proj.bias": (3 * rank,),
        }
    if config["enable_confidence_head"]:
        shapes |= {"confidence_head.proj.weight": (1, hidden + rank), "confidence_head.proj.bias": (1,)}
    return shapes


def geometry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's own config as an engine understands ``config``: the inverse of ``layout_config``."""
    backbone = dflash.geometry_of(config)
    from_anchor = config["sample_from_anchor"]
    ours = {engine: own for own, engine in dspark_rules.HEAD_TYPES.items()}
    return {
        **backbone,
        "block_size": dspark_rules.rows_of(backbone["block_size"], sample_from_anchor=from_anchor),
        "sample_from_anchor": from_anchor,
        "head": ours[config["markov_head_type"]],
        "head_rank": config["markov_rank"],
        "confidence": config["enable_confidence_head"],
    }


def export_tensors(trained: Mapping[str, Tensor], *, dtype: str) -> dict[str, Tensor]:
    """The names are the network's own."""
    wide = {name: tensor for name, tensor in trained.items() if name.startswith("confidence_head.")}
    rest = {name: tensor for name, tensor in trained.items() if name not in wide}
    return cast_tensors(rest, dtype=dtype) | cast_tensors(wide, dtype="float32")


def drafter_tensors(exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dflash.drafter_tensors(exported)


def as_read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model reads the heads' keys at the top level, the worker the section first; both get defaults."""
    backbone = dflash_reading.config_as_read(config)
    defaults = {
        "sample_from_anchor": True,
        "confidence_head_with_markov": True,
        "enable_confidence_head": any("confidence_head." in name for name in tensors),
    }
    own = {key: config.get(key, defaults.get(key)) for key in sorted(HEAD_KEYS)}
    stated = {key: value for key, value in own.items() if value is not None}
    section = {**stated, "block_size": backbone["block_size"], **(config.get("dspark_config") or {})}
    found = dflash_reading.tensors_as_read(tensors, unprefixed=UNPREFIXED)
    return {**backbone, **stated, "dspark_config": section}, found


def launch_flags(manifest: Mapping[str, Any]) -> dict[str, str]:
    """For DSPARK the block size is the number of proposals; the verify window is one more and follows from it."""
    return {"--speculative-algorithm": "DSPARK", "--speculative-dspark-block-size": str(_proposals(manifest))}


def read_back(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**dflash.read_back(config), **{key: config[key] for key in (*sorted(HEAD_KEYS), "dspark_config")}}


def _proposals(manifest: Mapping[str, Any]) -> int:
    rows, proposals = int(manifest["block_size"]), int(manifest["num_proposals"])
    from_anchor = bool(manifest["sample_from_anchor"])
    if rows != dspark_rules.rows_of(proposals, sample_from_anchor=from_anchor):
        raise ValueError(
            f"dspark: expected num_proposals = {rows if from_anchor else rows - 1} for a block of {rows} rows with "
            f"sample_from_anchor {from_anchor}, found {proposals}"
        )
    return proposals


def _constants(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**dflash.constants(config), "architectures": [ARCHITECTURE]}


RULES = {
    "config-keys": lint_rules.config_keys(
        CONFIG_KEYS,
        dflash_config=(dflash.METHOD_KEYS, dflash.OPTIONAL_METHOD_KEYS),
        dspark_config=(METHOD_KEYS, frozenset()),
    ),
    "constants": lint_rules.constants(_constants),
    "sizes": lint_rules.sizes,
    "heads": dspark_rules.heads,
    "layer-ids": lint_rules.layer_ids("dflash_config", "target_layer_ids"),
    "block": dspark_rules.block,
    "visibility": dflash_rules.visibility(dflash.visibility_keys),
    "mask-token": dflash_rules.mask_token,
    **lint_rules.of_every_method(layout_shapes, export_tensors),
}
