"""``import``: a public directory becomes an artifact of the store, once; everything not understood is listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from specflow.drafters.dflash2 import method as dflash2
from specflow.drafters.loading import load_network, read_manifest
from specflow.training.init_from import warm_start
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow
from tests.serving.helpers import drafter_of, export_of
from tests.stages.pipeline_helpers import tiny_target

KEY = "ab" * 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``store`` with the target, ``public`` a DFlash without anything that only we write."""
    root = tmp_path_factory.mktemp("import")
    target = tiny_target(root)
    made = export_of(root, target, drafter_of(root / "trained", target, "dflash"))
    shutil.copytree(made.path / "draft", root / "public", ignore=shutil.ignore_patterns("manifest*", "feature*"))
    store = ArtifactStore(root / "store")
    recipe = Recipe(
        kind="target", key=KEY, stage="target", item=None, code_version="1", parameters={}, key_parameters={}, inputs={}
    )
    attempt = Attempt(store, recipe)
    attempt.prepare()
    shutil.copytree(target.path, attempt.output, dirs_exist_ok=True)
    attempt.commit({})
    return root


def test_it_becomes_an_artifact_once_and_starts_others(root: Path) -> None:
    words = ["import", root / "public", "--target", KEY[:12], "--store", root / "store", "--json"]
    first = specflow(*words)
    assert first.exit_code == 0, first.output
    told = document(first)
    assert (told["kind"], told["imported"]) == ("drafter", True)
    assert len(told["not_known"]) == 3
    assert document(specflow(*words))["key"] == told["key"]
    store = ArtifactStore(root / "store")
    record = store.record("drafter", told["key"])
    assert record is not None
    assert (record.inputs, record.item, record.stage) == ({"target": [KEY]}, "public", "import")
    assert store.verify_key("drafter", told["key"]) == []
    shown = specflow("show", told["key"][:12], "--store", root / "store")
    assert shown.exit_code == 0, shown.output
    path = Path(told["path"])
    assert read_manifest(path).lineage["imported"]["architecture"] == "DFlashDraftModel"
    # METHODS 7: a DFlash 2 begins as its DFlash; everything of the public one is taken.
    geometry = {**load_network(path).geometry.to_dict()}  # type: ignore[operator, union-attr]
    extras = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4,
              "output_multiplier": 1.0, "final_logit_softcapping": None}  # fmt: skip
    network = dflash2.build_network({**geometry, **extras})
    taken = warm_start(network, path, config=dflash2.network_config(network))
    assert taken.taken.keys() == load_file(str(path / "drafter/model.safetensors")).keys()
    assert not taken.left
    assert all("conv" in name or "selector" in name for name in taken.new)


def test_everything_that_is_not_understood_is_told_at_once(root: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(root / "public", tmp_path / "broken"))
    config = json.loads((broken / "config.json").read_text())
    config.update(projector_type="domino", block_sze=3)
    (broken / "config.json").write_text(json.dumps(config))
    done = specflow("import", broken, "--target", KEY[:12], "--store", root / "store", "--json")
    assert done.exit_code == 2
    messages = " ".join(error["message"] for error in document(done)["errors"])
    assert "'projector_type'" in messages
    assert "'block_sze'" in messages
    for words, said in (
        (["import", tmp_path, "--target", KEY[:12], "--store", root / "store"], "config.json"),
        (["import", root / "public", "--store", root / "store"], "--config"),
        (["import", root / "public", "--target", root / "public", "--store", root / "store"], "no target"),
    ):
        refused = specflow(*words)
        assert refused.exit_code == 2, refused.output
        assert said in refused.stderr
