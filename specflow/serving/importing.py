"""A public drafter's directory -> a drafter of ours, or the names of everything in it that is not understood.

What an engine makes of the directory is read by the method's layout (``as_read``); that gives the geometry and the
weights. Then the geometry is exported again, and the linter judges the two together as if the directory were ours:
every key that is stated must be one of ours with the value that we would write, and every tensor one of ours. So
nothing that would change the drafter can be passed over; a key that changes nothing must be known as such here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.drafters.files import drafter_directory, weight_files
from specflow.drafters.loading import Manifest
from specflow.features.contract import FINGERPRINT_FIELDS, FeatureContract
from specflow.serving.draft import Draft
from specflow.serving.draft_directory import manifest_beside, open_draft
from specflow.serving.layouts.registry import ENGINES, Layout, get_layout
from specflow.serving.lint import lint, of_engine

if TYPE_CHECKING:
    from torch import nn

UNKNOWN = "unknown"
"""In a contract: nobody said what the features were that it was trained on."""
CONTRACT_FILE = "feature_contract.json"
PASSED_OVER = frozenset(
    {
        "_name_or_path", "attention_dropout", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype",
        "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "max_window_layers",
        "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict",
        "target_model_name_or_path", "torch_dtype", "transformers_version", "use_cache",
        # What the geometry is made from, both forms of it; the linter has judged them in the directory itself.
        "architectures", "is_causal", "layer_types", "model_type", "rope_parameters", "rope_scaling", "rope_theta",
        "sliding_window", "use_aux_norm", "use_sliding_window",
    }
)  # fmt: skip
"""Keys that are nothing to the engine, or are read into the geometry."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention_sink_bias": (False, None),
    "attention_value_scale": (None, 1, 1.0),
    "bias": (False, None),
    "conv_group_size": (0, None),
    "conv_kernel_size": (0, None),
    "final_logit_softcapping": (None, 0, 0.0),
    "is_neox_style": (True, None),
    "mlp_bias": (False, None),
    "norm_before_fc": (False, None),
    "output_multiplier": (1, 1.0, None),
    "partial_rotary_factor": (1, 1.0, None),
    "pretraining_tp": (1, None),
    "projector_type": (None, "dflash"),
    "quantization_config": (None,),
    "rope_is_neox_style": (True, None),
    "selector_rank": (0, None),
    "selector_top_k": (0, None),
    "use_gemma_norm": (False, None),
}
"""Keys of other drafters that change nothing with these values."""


class NotUnderstood(ValueError):
    """A directory that cannot become a drafter of ours; ``problems`` names everything that speaks against it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A drafter that was not trained here."""

    network: nn.Module
    manifest: Manifest
    files: tuple[Path, ...]
    """What it was read from."""
    unknown: tuple[str, ...]
    """What nobody said."""


def read_foreign(directory: Path, target: Path, *, fingerprint: Mapping[str, str]) -> Foreign:
    """Read ``directory`` as a drafter for the target in ``target``, whose files have ``fingerprint``.

    Raises ``NotUnderstood`` with all findings of the linter and every key and tensor that is not known, and
    ``ValueError`` where the directory holds no draft.
    """
    place = drafter_directory(directory)
    opened = open_draft(place, target=target)
    report = lint(opened, engine=ENGINES[0])
    if report.findings:
        raise NotUnderstood([str(finding) for finding in report.findings])
    method = report.method
    layout, read = get_layout(method), of_engine(opened)
    network = _network(method, layout, read)
    stated, contract, unknown = _provenance(place, read, layout, fingerprint)
    manifest = _manifest(method, network, read, layout, contract=contract, fingerprint=fingerprint, lineage=stated)
    if problems := list(_as_if_ours(opened, read, layout, manifest, network)):
        raise NotUnderstood(problems)
    files = tuple(p for p in (place / "config.json", place / "manifest.json", *weight_files(place)) if p.exists())
    return Foreign(network=network, manifest=manifest, files=files, unknown=unknown)


def _network(method: str, layout: Layout, read: Draft) -> nn.Module:
    from specflow.drafters.registry import get_method

    try:
        network = get_method(method).build_network(layout.geometry_of(read.config))
        weights = layout.drafter_tensors(read.tensors)
        own = network.state_dict()
        cast = {n: t.to(own[n].dtype) if n in own and not t.is_floating_point() else t for n, t in weights.items()}
        network.load_state_dict(cast, strict=True)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise NotUnderstood([f"config.json: expected a {method} that can be built here, found {error}"]) from error
    return network.eval().requires_grad_(False)


def _provenance(
    place: Path, read: Draft, layout: Layout, fingerprint: Mapping[str, str]
) -> tuple[dict[str, Any], FeatureContract, tuple[str, ...]]:
    """Where it is from, the features it was trained on as far as known, and what is not known."""
    ours = manifest_beside(place)
    origin: dict[str, Any] = {"architecture": read.config["architectures"][0], "directory": place.resolve().name}
    path = place / CONTRACT_FILE
    if ours is not None and path.exists():
        return {**(ours.get("lineage") or {}), "imported": origin}, FeatureContract.read(path), ()
    contract = FeatureContract(
        **{name: fingerprint[name] for name in FINGERPRINT_FIELDS},
        layer_ids=tuple(layout.geometry_of(read.config).get("layer_ids", ())),
        hidden_size=int(read.config["hidden_size"]),
        precision=UNKNOWN,
        dtype=UNKNOWN,
        scale_layout=UNKNOWN,
        rows=UNKNOWN,
        thinking=UNKNOWN,
    )
    unknown = (
        "the target's weights, tokenizer and template: taken to be those of the target given",
        "the features: precision, dtype, which rows, thinking mode",
        "data, steps and figures of its training",
    )
    return {"imported": {**origin, "unknown": list(unknown)}}, contract, unknown


def _manifest(
    method: str,
    network: nn.Module,
    read: Draft,
    layout: Layout,
    *,
    contract: FeatureContract,
    fingerprint: Mapping[str, str],
    lineage: Mapping[str, Any],
) -> Manifest:
    from specflow.drafters.registry import get_method

    geometry, shape = layout.geometry_of(read.config), get_method(method).layout(network)
    return Manifest(
        method=method,
        block_size=shape.block_size,
        num_proposals=shape.num_proposals,
        sample_from_anchor=shape.sample_from_anchor,
        layer_ids=tuple(geometry.get("layer_ids", ())),
        mask_token=(read.config.get("dflash_config") or {}).get("mask_token"),
        mask_token_id=geometry.get("mask_token_id"),
        feature_contract=contract,
        target_fingerprint=dict(fingerprint),
        lineage=lineage,
    )


def _as_if_ours(opened: Draft, read: Draft, layout: Layout, manifest: Manifest, network: nn.Module) -> Iterator[str]:
    """What the linter finds in the directory's own keys and tensors, laid over what we would export."""
    from specflow.drafters.registry import get_method

    geometry = {**get_method(manifest.method).network_config(network)}
    stated = manifest.to_dict()
    try:
        written = layout.layout_config(geometry, stated, read.target, dtype=read.dtype)
    except (KeyError, ValueError) as error:
        yield str(error)
        return
    yield from _not_neutral(opened.config, "config.json")
    merged = {**written, **_telling(opened.config)}
    if "draft_vocab_size" not in written:  # it has no head of its own that could be tied to anything
        merged["tie_word_embeddings"] = written["tie_word_embeddings"]
    for name, section in written.items():
        if name.endswith("_config") and isinstance(section, dict):
            own = opened.config.get(name) or {}
            yield from _not_neutral(own, name)
            merged[name] = {**section, **_telling(own)}
    ours = replace(
        read, config=_without_moved(merged, written), geometry=geometry, manifest={**stated, "dtype": read.dtype}
    )
    yield from (str(finding) for finding in lint(ours, engine=ENGINES[0]).findings)


def _telling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that must be ours."""
    return {k: v for k, v in config.items() if k not in PASSED_OVER and v is not None and not _neutral(k, v)}


def _neutral(key: str, value: Any) -> bool:
    return key in NEUTRAL and not isinstance(value, dict) and value in NEUTRAL[key]


def _not_neutral(config: Mapping[str, Any], where: str) -> Iterator[str]:
    if config.get("quantization_config"):
        yield f"{where} 'quantization_config': expected tensors that are not quantised, found a quantised drafter"


def _without_moved(merged: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a section may also stand at the top: those are judged there by their value, and then left."""
    sections = {k: v for name, part in written.items() if name.endswith("_config") for k, v in (part or {}).items()}
    return {k: v for k, v in merged.items() if k in written or not (k in sections and v == sections[k])}
