"""Damaged exports as files, in one table: each is refused by the rule that is meant for it, with its consequence.

The lint sees what a server sees: a directory, the target, and where the fault can be told from nothing else, the
trained drafter. The tables beside each layout (``test_lint_*.py``) plant faults in memory, rule by rule.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specflow.calibration.sglang_sts import StsTemperatures, write_sts
from specflow.costs.sglang_tables import write_table
from specflow.costs.tables import AdditiveTable, RowTable
from specflow.serving.consequences import CONSEQUENCES
from specflow.serving.draft_directory import open_draft
from specflow.serving.layouts.registry import layout_names
from specflow.serving.lint import Report, lint
from specflow.stages.contract import Artifact
from tests.serving.helpers import drafter_of, export_of
from tests.stages.pipeline_helpers import tiny_target

ENGINE = "sglang-0.5.23"
Damage = Callable[[Path], Any]


@dataclass(frozen=True)
class Made:
    target: Artifact
    exports: dict[str, Artifact]
    drafters: dict[str, Artifact]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("damaged")
    target = tiny_target(root)
    drafters = {m: drafter_of(root / m / "trained", target, m) for m in layout_names()}
    exports = {m: export_of(root / m, target, d, dtype="bfloat16") for m, d in drafters.items()}
    return Made(target, exports, drafters)


def config(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(directory: Path) -> None:
        values = json.loads((directory / "config.json").read_text())
        change(values)
        (directory / "config.json").write_text(json.dumps(values))

    return damage


def section(name: str, **changes: Any) -> Damage:
    return config(lambda c: c[name].update(changes))


def tensors(change: Callable[[dict[str, Tensor]], Any]) -> Damage:
    def damage(directory: Path) -> None:
        values = load_file(str(directory / "model.safetensors"))
        change(values)
        save_file(values, str(directory / "model.safetensors"))

    return damage


def without(name: str) -> Damage:
    return tensors(lambda t: t.pop(name))


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Damage:
    return tensors(lambda t: t.update({name: change(t[name]).contiguous()}))


def one_value(tensor: Tensor) -> Tensor:
    other = tensor.clone()
    other.view(-1)[5] += 0.5
    return other


def renamed(old: str, new: str) -> Damage:
    return tensors(lambda t: t.update({new: t.pop(old)}))


def prefixed(values: dict[str, Tensor]) -> None:
    for name in list(values):
        values[f"draft_model.{name}"] = values.pop(name)


def in_manifest_too(key: str, own: str, nested: str, value: Any) -> Damage:
    """So that only the rule itself can object."""

    def damage(directory: Path) -> None:
        section(nested, **{key: value})(directory)
        manifest = json.loads((directory / "manifest.json").read_text())
        manifest[own] = value
        (directory / "manifest.json").write_text(json.dumps(manifest))

    return damage


def temperatures(count: int) -> Damage:
    return lambda d: write_sts(d / "sts.json", StsTemperatures(temperatures=(1.0,) * count))


FLAT = RowTable(rows=(1, 64), rounds_per_second=(50.0, 49.9), max_rows=64)
FLAT_ADDITIVE = AdditiveTable(
    bias_seconds=0.1, requests=(1, 8), alpha_seconds=(0.0, 0.1), rows=(1, 64), theta_seconds=(0.0, 1e-5)
)
STS_OF = {"dspark": 4}
"""Proposals."""
EAGLE_IDS, DFLASH = "eagle_aux_hidden_state_layer_ids", "dflash_config"
SELECTOR = "candidate_selector.successor_codebook"
CONFIDENCE = "confidence_head.proj.weight"

DAMAGED: dict[str, tuple[str, Damage, str, str]] = {
    "missing head": ("eagle3", without("lm_head.weight"), "tensors", "lm_head.weight"),
    "absolute d2t": ("eagle3", changed("d2t", lambda t: t + torch.arange(len(t))), "vocabulary", "ids themselves"),
    "d2t off by one": ("eagle3", changed("d2t", lambda t: t - 1), "vocabulary", "d2t leads to"),
    "ids of the draft unsorted": ("eagle3", changed("d2t", lambda t: t.flip(0)), "vocabulary", "increasing ids"),
    "draft vocabulary forgotten": ("eagle3", config(lambda c: c.update(draft_vocab_size=None)), "vocabulary", "None"),
    "prefix of a wrapper": ("dflash", tensors(prefixed), "tensors", "draft_model.fc.weight"),
    "prefix of the heads": ("dspark", renamed(CONFIDENCE, f"model.{CONFIDENCE}"), "tensors", f"model.{CONFIDENCE}"),
    "transposed": ("dflash", changed("fc.weight", lambda t: t.T), "shapes", "fc.weight"),
    "transposed, square": ("dflash", changed("layers.0.self_attn.o_proj.weight", lambda t: t.T), "values", "o_proj"),
    "wrong dtype": ("dflash", changed("norm.weight", lambda t: t.half()), "dtype", "float16"),
    "confidence in bfloat16": ("dspark", changed(CONFIDENCE, lambda t: t.bfloat16()), "dtype", CONFIDENCE),
    "fp16 overflow": ("dflash", changed("fc.weight", lambda t: (t.float() * 1e9).half()), "values", "non-finite"),
    "missing codebook": ("dflash2", without(SELECTOR), "tensors", SELECTOR),
    "codebook of fewer tokens": ("dflash2", changed(SELECTOR, lambda t: t[:-7]), "codebooks", "one per token"),
    "missing Markov tensor": ("dspark", without("markov_head.markov_w1.weight"), "tensors", "markov_w1"),
    "missing convolution": ("dflash2", without("layers.0.mlp_conv.base_kernel"), "tensors", "mlp_conv.base_kernel"),
    "missing layer": ("eagle3", without("midlayer.mlp.up_proj.weight"), "tensors", "midlayer.mlp.up_proj"),
    "a head that is not ours": ("dflash", tensors(lambda t: t.update(w=torch.zeros(2))), "tensors", "extra tensor"),
    "inputs for outputs of layers": ("eagle3", section("eagle_config", **{EAGLE_IDS: [1, 3]}), "layer-ids", "manifest"),
    "layers shifted": ("dflash", section(DFLASH, target_layer_ids=[1, 2]), "layer-ids", "(manifest)"),
    "layers unsorted": ("dflash", in_manifest_too("target_layer_ids", "layer_ids", DFLASH, [2, 0]), "layer-ids", "inc"),
    "the last layer": (
        "dflash", in_manifest_too("target_layer_ids", "layer_ids", DFLASH, [0, 3]), "layer-ids", "last layer 3"
    ),
    "stale temperatures": ("dspark", temperatures(3), "temperatures", "3 temperatures"),
    "no temperature above zero": (
        "dspark", lambda d: (d / "sts.json").write_text('{"temperatures": [1.0, 0.0, 1.0, 1.0]}'), "temperatures", "0"
    ),
    "flat costs by rows": ("dspark", lambda d: write_table(d / "sps.json", FLAT), "costs", "a flat table"),
    "flat additive costs": ("dspark", lambda d: write_table(d / "sps.json", FLAT_ADDITIVE), "costs", "a flat table"),
    "torn costs": ("dspark", lambda d: (d / "sps.json").write_text('{"bias_seconds": 0.1}'), "costs", "missing"),
    "older rope form lost": ("dflash", config(lambda c: c.pop("rope_theta")), "rope", "rope_theta"),
    "another rope base": ("eagle3", config(lambda c: c["rope_parameters"].update(rope_theta=5.0)), "rope", "5.0"),
    "rope of another kind": (
        "dspark", config(lambda c: c["rope_parameters"].update(rope_type="yarn")), "rope", "rope_type"
    ),
    "mask token out of range": ("dflash", section(DFLASH, mask_token_id=300), "mask-token", "[0, 300)"),
    "another mask token": ("dspark", section(DFLASH, mask_token_id=8), "mask-token", "(manifest)"),
    "mask token of another name": ("dflash", section(DFLASH, mask_token="<s>"), "mask-token", "<s>"),
    "no power of two": ("dflash2", section(DFLASH, selector_top_k=6), "codebooks", "a power of two"),
    "groups that do not divide": ("dflash2", section(DFLASH, conv_group_size=24), "convolution", "divides 64"),
    "convolution switched off": ("dflash2", section(DFLASH, conv_kernel_size=0, conv_group_size=0), "extras", "conv_"),
    "causal block": ("dflash", config(lambda c: c.update(is_causal=True)), "visibility", "is_causal"),
    "window lost": (
        "sliding", config(lambda c: c.update(sliding_window=None, use_sliding_window=False)), "visibility", "sliding"
    ),
    "sliding layers lost": (
        "sliding", config(lambda c: c.update(layer_types=["full_attention"])), "visibility", "layer_types"
    ),
    "max_position too small": ("eagle3", config(lambda c: c.update(max_position_embeddings=64)), "positions", "4096"),
    "changed copied tensor": ("dflash", changed("hidden_norm.weight", one_value), "as-exported", "hidden_norm"),
    "window for proposals": ("dspark", config(lambda c: c.update(block_size=5)), "block", "4, the proposals"),
    "proposals for a window": ("dflash", config(lambda c: c.update(block_size=3)), "block", "anchor included"),
    "heads nested only": ("dspark", config(lambda c: c.pop("markov_rank")), "heads", "markov_rank"),
    "other number of steps": ("eagle3", section("eagle_config", num_speculative_steps=7), "steps", "3 (manifest)"),
    "unknown key": ("dflash", config(lambda c: c.update(block_sze=16)), "config-keys", "'block_sze'"),
    "served without its selector": (
        "dflash2", config(lambda c: c.update(architectures=["DFlashDraftModel"])), "constants", "architectures"
    ),
    "of another target": (
        "dflash",
        lambda d: (d / "manifest.json").write_text(
            (d / "manifest.json").read_text().replace('"weights_sha256": "', '"weights_sha256": "0')
        ),
        "target",
        "weights",
    ),
}  # fmt: skip
NEED_THE_TRAINED = {"transposed, square", "wrong dtype", "confidence in bfloat16"}


def judged(directory: Path, made: Made, method: str, *, trained: bool) -> Report:
    drafter = made.drafters[method].path if trained else None
    return lint(open_draft(directory, target=made.target.path, drafter=drafter), engine=ENGINE)


@pytest.fixture(scope="module")
def sliding(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sliding")
    drafter = drafter_of(root / "trained", made.target, "dflash", sliding_window=8)
    return export_of(root, made.target, drafter).path / "draft"


@pytest.mark.parametrize("method", layout_names())
def test_the_undamaged_ones_pass(made: Made, method: str, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(made.exports[method].path / "draft", tmp_path / "draft"))
    if method in STS_OF:  # a scheduler's files that fit
        temperatures(STS_OF[method])(directory)
        write_table(directory / "sps.json", RowTable(rows=(1, 64), rounds_per_second=(50.0, 30.0), max_rows=64))
    report = judged(directory, made, method, trained=True)
    assert report.findings == ()
    assert report.not_judged == {}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_one_is_refused(made: Made, sliding: Path, what: str, tmp_path: Path) -> None:
    method, damage, check, said = DAMAGED[what]
    source = sliding if method == "sliding" else made.exports[method].path / "draft"
    directory = Path(shutil.copytree(source, tmp_path / "draft"))
    own = "dflash" if method == "sliding" else method
    before = judged(directory, made, own, trained=False)
    assert before.findings == ()
    damage(directory)
    report = judged(directory, made, own, trained=what in NEED_THE_TRAINED)
    found = [str(finding) for finding in report.findings if finding.check == check]
    assert any(said in text for text in found), [str(f) for f in report.findings] or "nothing found"
    told = next(f for f in report.as_json()["findings"] if f["check"] == check)
    assert told["consequence"] == CONSEQUENCES[check]


def test_there_are_enough_of_them_over_all_methods() -> None:
    assert len(DAMAGED) >= 25
    assert {method for method, *_ in DAMAGED.values()} >= {"eagle3", "dflash", "dflash2", "dspark"}
