"""Public drafters become ours: out and in again is byte-equal, and what is not understood is refused by its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specflow.drafters.loading import load_network, read_manifest, save_drafter
from specflow.serving.importing import UNKNOWN, NotUnderstood, read_foreign
from specflow.serving.layouts.registry import layout_names
from specflow.stages.contract import Artifact
from tests.serving.helpers import LAYERS, drafter_of, export_of
from tests.serving.test_lint_directory import edit_config, edit_tensors
from tests.stages.pipeline_helpers import artifact, fingerprint_of, tiny_target

METHODS = layout_names()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return tiny_target(tmp_path_factory.mktemp("importing"))


@pytest.fixture(scope="module")
def exports(target: Artifact, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("exports")
    return {m: export_of(root / m, target, drafter_of(root / m / "trained", target, m)) for m in METHODS}


def public(exports: dict[str, Artifact], method: str, tmp_path: Path) -> Path:
    """Without what only we write."""
    directory = Path(shutil.copytree(exports[method].path / "draft", tmp_path / method))
    for name in ("manifest.json", "feature_contract.json", "README.md"):
        (directory / name).unlink(missing_ok=True)
    return directory


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "public"])
@pytest.mark.parametrize("method", METHODS)
def test_out_in_and_out_again_is_byte_equal(
    target: Artifact, exports: dict[str, Artifact], method: str, ours: bool, tmp_path: Path
) -> None:
    place = exports[method].path if ours else public(exports, method, tmp_path)
    found = read_foreign(place, target.path, fingerprint=fingerprint_of(target))
    save_drafter(tmp_path / "in/drafter", found.network, found.manifest)
    again = export_of(tmp_path / "again", target, artifact("drafter", tmp_path / "in"))
    for name in ("config.json", "model.safetensors"):
        assert (again.path / "draft" / name).read_bytes() == (exports[method].path / "draft" / name).read_bytes(), name
    assert found.manifest.method == method
    contract = read_manifest(tmp_path / "in").feature_contract
    assert contract.layer_ids == (() if method == "eagle" and not ours else LAYERS)
    assert contract.precision == ("fp32" if ours else UNKNOWN)
    assert bool(found.unknown) is not ours
    assert found.manifest.lineage["imported"]["directory"]


def without_copies_of_keys(config: dict[str, Any]) -> None:
    for key in ("rope_parameters", "torch_dtype", "rope_scaling", "num_target_layers"):
        config.pop(key, None)
    config.update(initializer_range=0.02, transformers_version="4.57", use_cache=True, attention_dropout=0.0)


@pytest.mark.parametrize("method", METHODS)
def test_few_keys_and_other_names_are_the_same_drafter(
    target: Artifact, exports: dict[str, Artifact], method: str, tmp_path: Path
) -> None:
    directory = public(exports, method, tmp_path)
    edit_config(directory, without_copies_of_keys)
    heads = ("markov_head", "confidence_head")
    if method != "eagle":  # whose engine adds the prefix itself
        edit_tensors(
            directory,
            lambda t: [t.update({f"model.{n}": t.pop(n)}) for n in list(t) if not n.startswith((*heads, "d2t", "t2d"))],
        )
    found = read_foreign(directory, target.path, fingerprint=fingerprint_of(target))
    trained = load_network(exports[method].path.parent / "trained")
    for name, value in trained.state_dict().items():
        got = found.network.state_dict()[name]
        kept = not value.is_floating_point() or name.startswith("confidence_head.")
        assert torch.equal(got, value if kept else value.bfloat16().float()), name


def test_an_eagle3_without_layers_has_the_engine_s(target: Artifact, tmp_path: Path) -> None:
    """Three features; a target of four layers would have [1, 1, 0], so the ids are refused: nothing is guessed."""
    drafter = drafter_of(tmp_path / "d", target, "eagle3")
    directory = Path(shutil.copytree(export_of(tmp_path, target, drafter).path / "draft", tmp_path / "public"))
    (directory / "manifest.json").unlink()
    edit_config(directory, lambda c: c.pop("eagle_config"))
    with pytest.raises(NotUnderstood, match=r"\[1, 1, 0\]"):
        read_foreign(directory, target.path, fingerprint=fingerprint_of(target))


Change = Callable[[dict[str, Any]], Any]
REFUSED: dict[str, tuple[str, Change, str]] = {
    "unknown key": ("dflash", lambda c: c.update(sliding_windw=3), "'sliding_windw'"),
    "unknown nested key": ("dflash", lambda c: c["dflash_config"].update(temper=1), "'temper'"),
    "sinks": ("dflash", lambda c: c["dflash_config"].update(attention_sink_bias=True), "'attention_sink_bias'"),
    "another projector": ("dflash", lambda c: c.update(projector_type="domino"), "'projector_type'"),
    "quantised": ("dflash", lambda c: c.update(quantization_config={"bits": 4}), "not quantised"),
    "biases": ("dflash", lambda c: c.update(attention_bias=True), "attention_bias"),
    "activation": ("dflash", lambda c: c.update(hidden_act="gelu"), "hidden_act"),
    "partial rotation": ("dflash", lambda c: c.update(partial_rotary_factor=0.5), "'partial_rotary_factor'"),
    "architecture": ("dflash", lambda c: c.update(architectures=["LiLiCorrDraftModel"]), "LiLiCorrDraftModel"),
    "tied head": ("eagle3", lambda c: c.update(tie_word_embeddings=True), "tie_word_embeddings"),
    "norm before fc": ("eagle3", lambda c: c["eagle_config"].update(norm_before_fc=True), "norm_before_fc"),
    "other width of the target": ("eagle3", lambda c: c.update(target_hidden_size=128), "target_hidden_size"),
    "layers elsewhere": (
        "eagle3", lambda c: c.update(eagle_aux_hidden_state_layer_ids=[1, 2]), "'eagle_aux_hidden_state_layer_ids'"
    ),
    "unknown head": ("dspark", lambda c: c.update(markov_head_type="lstm"), "lstm"),
    "confidence without the token": ("dspark", lambda c: c.update(confidence_head_with_markov=False), "with_markov"),
    "no power of two": ("dflash2", lambda c: c["dflash_config"].update(selector_top_k=6), "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_named(
    target: Artifact, exports: dict[str, Artifact], what: str, tmp_path: Path
) -> None:
    method, change, said = REFUSED[what]
    directory = public(exports, method, tmp_path)
    edit_config(directory, change)
    with pytest.raises(ValueError, match=said):
        read_foreign(directory, target.path, fingerprint=fingerprint_of(target))


@pytest.mark.parametrize("method", METHODS)
def test_damaged_tensors_are_refused_all_at_once(
    target: Artifact, exports: dict[str, Artifact], method: str, tmp_path: Path
) -> None:
    directory = public(exports, method, tmp_path)

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        first, second, *_ = sorted(tensors)
        tensors["unknown.weight"] = tensors.pop(first)
        tensors[second] = tensors[second].reshape(-1)[:-1].clone()

    names = sorted(load_file(str(directory / "model.safetensors")))[:2]
    edit_tensors(directory, damage)
    with pytest.raises(NotUnderstood) as caught:
        read_foreign(directory, target.path, fingerprint=fingerprint_of(target))
    for name in (*names, "unknown.weight"):
        assert any(name in problem for problem in caught.value.problems), (name, caught.value.problems)
