"""Each planted fault of a DSpark export is found, by its own check and message, and a sound export has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.drafters.dspark.network import DSparkNetwork
from specflow.serving.draft import Draft, read_draft
from specflow.serving.layouts import dspark
from specflow.serving.layouts.common import write_layout
from specflow.serving.lint import COMMON, lint
from tests.drafters.dspark_helpers import KINDS, dspark_network

ENGINE = "sglang-0.5.23"
TARGET = {"hidden_size": 32, "vocab_size": 97, "num_hidden_layers": 5, "max_position_embeddings": 512}
Plant = Callable[[Draft], Draft]


def manifest_of(net: DSparkNetwork) -> dict[str, Any]:
    g = net.geometry
    return {
        "method": "dspark",
        "block_size": g.block_size,
        "num_proposals": g.num_proposals,
        "sample_from_anchor": g.sample_from_anchor,
        "layer_ids": list(g.layer_ids),
        "layer_convention": "output_of_layer",
        "target_fingerprint": {},
        "mask_token": "<|unused|>",
        "mask_token_id": g.mask_token_id,
    }


def exported(directory: Path, head: str = "rnn", anchor: bool = True, **changes: object) -> Draft:
    net = dspark_network(head, anchor, **changes)
    trained = {name: value.detach() for name, value in net.state_dict().items()}
    geometry, manifest = json.loads(json.dumps(net.geometry.to_dict())), manifest_of(net)
    config = dspark.layout_config(geometry, manifest, TARGET, dtype="bfloat16")
    write_layout(directory, config, dspark.export_tensors(trained, dtype="bfloat16"))
    return read_draft(directory, trained=trained, geometry=geometry, manifest=manifest, target=TARGET, dtype="bfloat16")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    return exported(tmp_path_factory.mktemp("draft"))


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_a_sound_export_has_no_finding_and_leads_back(tmp_path: Path, head: str, anchor: bool) -> None:
    draft = exported(tmp_path, head, anchor)
    report = lint(draft, engine=ENGINE)
    assert report.findings == ()
    assert set(report.checks) == {*dspark.RULES, *COMMON}
    assert dspark.geometry_of(draft.config) == draft.geometry
    back = dspark.drafter_tensors(draft.tensors)
    assert back.keys() == draft.trained.keys()
    for name, value in back.items():
        kept = draft.trained[name] if name.startswith("confidence_head.") else draft.trained[name].bfloat16()
        assert torch.equal(value, kept.float()), name
    assert not any(name.startswith("model.") for name in draft.tensors)
    assert draft.config["block_size"] == draft.config["dflash_config"]["block_size"] == 4
    assert draft.geometry["block_size"] == (4 if anchor else 5)


def test_transformers_reads_what_was_written(tmp_path: Path) -> None:
    from transformers import AutoConfig

    draft = exported(tmp_path, "gated", False)
    read = AutoConfig.from_pretrained(str(tmp_path))
    expected = dspark.read_back(draft.config)
    assert {key: getattr(read, key) for key in expected} == expected
    assert (read.markov_rank, read.markov_head_type, read.sample_from_anchor) == (6, "gated", False)


def test_without_a_confidence_head(tmp_path: Path) -> None:
    draft = exported(tmp_path, confidence=False)
    assert lint(draft, engine=ENGINE).findings == ()
    assert dspark.geometry_of(draft.config) == draft.geometry
    assert draft.config["enable_confidence_head"] is False


def with_config(**changes: Any) -> Plant:
    return lambda draft: replace(draft, config={**draft.config, **changes})


def without_config(key: str) -> Plant:
    return lambda draft: replace(draft, config={k: v for k, v in draft.config.items() if k != key})


def with_section(section: str, **changes: Any) -> Plant:
    return lambda draft: replace(draft, config={**draft.config, section: {**draft.config[section], **changes}})


def with_manifest(**changes: Any) -> Plant:
    return lambda draft: replace(draft, manifest={**draft.manifest, **changes})


def with_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    return lambda draft: replace(draft, tensors={**draft.tensors, name: change(draft.tensors[name])})


def renamed(old: str, new: str) -> Plant:
    return lambda draft: replace(draft, tensors={new if n == old else n: t for n, t in draft.tensors.items()})


def without_tensor(name: str) -> Plant:
    return lambda draft: replace(draft, tensors={n: t for n, t in draft.tensors.items() if n != name})


def one_value(tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[3] += 0.5
    return changed


def exchanged_tables(draft: Draft) -> Draft:
    first, second = (f"markov_head.markov_w{i}.weight" for i in (1, 2))
    return replace(draft, tensors={**draft.tensors, first: draft.tensors[second], second: draft.tensors[first]})


CONFIDENCE = "confidence_head.proj.weight"
FAULTS = {
    "prefix": (renamed(CONFIDENCE, f"model.{CONFIDENCE}"), "tensors", f"model.{CONFIDENCE}"),
    "no successor table": (without_tensor("markov_head.markov_w2.weight"), "tensors", "markov_head.markov_w2.weight"),
    "table of another vocabulary": (
        with_tensor("markov_head.markov_w2.weight", lambda t: t[:-1]), "shapes", "markov_w2"
    ),
    "tables exchanged": (exchanged_tables, "values", "markov_w1"),
    "changed confidence": (with_tensor(CONFIDENCE, one_value), "values", CONFIDENCE),
    "narrow confidence head": (with_tensor(CONFIDENCE, lambda t: t.bfloat16()), "dtype", CONFIDENCE),
    "wide table": (with_tensor("markov_head.markov_w1.weight", lambda t: t.float()), "dtype", "markov_w1"),
    "dtype": (with_config(dtype="float32"), "dtype", "dtype"),
    "head type in ours": (with_config(markov_head_type="markov"), "heads", "markov_head_type"),
    "nested head type": (with_section("dspark_config", markov_head_type="gated"), "heads", "dspark_config.markov_head"),
    "rank": (with_config(markov_rank=256), "heads", "markov_rank"),
    "rank is a flag": (with_config(markov_rank=True), "heads", "markov_rank"),
    "anchor mode": (with_config(sample_from_anchor=False), "heads", "sample_from_anchor"),
    "anchor mode of the manifest": (with_manifest(sample_from_anchor=False), "heads", "manifest sample_from_anchor"),
    "confidence without the token": (with_config(confidence_head_with_markov=False), "heads", "with_markov"),
    "rows, not proposals": (with_config(block_size=5), "block", "4, the proposals"),
    "window in a section": (with_section("dflash_config", block_size=5), "block", "dflash_config.block_size"),
    "block of the other section": (with_section("dspark_config", block_size=3), "block", "dspark_config.block_size"),
    "rows of the manifest": (with_manifest(block_size=5), "block", "4 rows for 4 proposals"),
    "rank at the top missing": (without_config("markov_rank"), "config-keys", "'markov_rank'"),
    "section missing": (without_config("dspark_config"), "config-keys", "'dspark_config'"),
    "unknown nested key": (with_section("dspark_config", temperature=1.0), "config-keys", "'temperature'"),
    "architecture": (with_config(architectures=["DFlashDraftModel"]), "constants", "architectures"),
    "causal block": (with_config(is_causal=True), "visibility", "is_causal"),
    "vocabulary": (with_config(vocab_size=96), "sizes", "vocab_size"),
    "layer ids shifted": (with_section("dflash_config", target_layer_ids=[1, 2, 3]), "layer-ids", "(manifest)"),
    "mask id": (with_section("dflash_config", mask_token_id=8), "mask-token", "(manifest)"),
    "short context": (with_config(max_position_embeddings=128), "positions", ">= 512"),
    "rotary base": (with_config(rope_theta=500.0), "rope", "500.0"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(sound: Draft, fault: str) -> None:
    plant, check, said = FAULTS[fault]
    findings = [str(f) for f in lint(plant(sound), engine=ENGINE).findings if f.check == check]
    assert any(said in f for f in findings), findings or "nothing found"


def test_every_rule_has_a_fault() -> None:
    assert {check for _, check, _ in FAULTS.values()} == set(dspark.RULES)


def test_a_manifest_of_another_layout_is_refused(sound: Draft) -> None:
    for changes in ({"block_size": 5}, {"block_size": 5, "sample_from_anchor": False}):
        with pytest.raises(ValueError, match="sample_from_anchor"):
            dspark.layout_config(sound.geometry, {**sound.manifest, **changes}, TARGET, dtype="bfloat16")
