"""What an export has beside the weights: a scheduler's files, the model card, stretched positions, other formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specflow.calibration.sglang_sts import StsTemperatures, write_sts
from specflow.config.export import ExportParams
from specflow.costs.sglang_tables import read_table, write_table
from specflow.costs.tables import AdditiveTable
from specflow.serving.launch import scheduling
from specflow.serving.serving import plan_serving
from specflow.stages import export
from specflow.stages.contract import Artifact, StageError
from tests.costs.test_tables import ADDITIVE
from tests.serving.helpers import LAYERS, drafter_of, export_of
from tests.stages.pipeline_helpers import FakeContext, artifact, inputs, tiny_target

FLAT = AdditiveTable(bias_seconds=0.1, requests=(1, 2), alpha_seconds=(0, 0.1), rows=(1, 9), theta_seconds=(0, 1e-4))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return tiny_target(tmp_path_factory.mktemp("extras"))


def calibration(root: Path, count: int) -> Artifact:
    root.mkdir()
    write_sts(root / "sts.json", StsTemperatures(temperatures=(1.5,) * count, dataset="held out", num_samples=40))
    return artifact("calibration", root)


def costs(root: Path, table: AdditiveTable, engine: str = "embedded") -> Artifact:
    root.mkdir()
    write_table(root / "sps_additive.json", table)
    conditions = {"engine": {"name": engine}, "hardware": {"cpu": "a processor"}}
    (root / "costs.json").write_text(json.dumps({"conditions": conditions}))
    return artifact("costs", root)


def benchmark(root: Path) -> Artifact:
    group = {
        "tau": 2.5, "plain": {"tokens_per_second": 30.0}, "speculative": {"tokens_per_second": 45.04},
        "speedup": {"ratio": 1.5, "low": 1.4, "high": 1.61},
    }  # fmt: skip
    result = {
        "total": group, "kinds": {"code": {**group, "speedup": None}}, "engine": {"name": "embedded"},
        "hardware": {"cpu": "a processor", "threads": 2}, "dataset": {"prompts": 9, "sha256": "ab" * 32},
        "sampling": {"name": "greedy"}, "concurrency": 1, "conventions": {"tau": "per round"}, "baseline": "plain",
    }  # fmt: skip
    root.mkdir()
    (root / "result.json").write_text(json.dumps(result))
    return artifact("benchmark", root)


def test_a_scheduler_s_files_travel_and_are_served(target: Artifact, tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path / "d", target, "dspark")
    made = export_of(
        tmp_path, target, drafter, calibration(tmp_path / "cal", 4), costs(tmp_path / "costs", ADDITIVE),
        benchmark(tmp_path / "bench"),
    )  # fmt: skip
    draft = made.path / "draft"
    assert read_table(draft / "sps.json") == ADDITIVE
    manifest = json.loads((draft / "manifest.json").read_text())
    assert manifest["schedule"]["temperatures"] == {"file": "sts.json", "rounds": 40, "dataset": "held out"}
    modes = {mode: plan_serving(made.path, target.path, mode=mode) for mode in ("static", "cap-accept", "compact")}
    sts, sps = "--speculative-dspark-confidence-sts-path", "--speculative-dspark-sps-table-path"
    assert {m: (s.flags.get(sts), s.flags.get(sps)) for m, s in modes.items()} == {
        "static": (None, None),
        "cap-accept": (str(draft / "sts.json"), str(draft / "sps.json")),
        "compact": (str(draft / "sts.json"), str(draft / "sps.json")),
    }
    assert modes["static"].environment == {}
    assert modes["compact"].environment == {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    assert modes["compact"].expected[sts[2:].replace("-", "_")] == str(draft / "sts.json")
    assert "embedded engine" in modes["compact"].notes[0]
    assert modes["cap-accept"].notes == modes["compact"].notes
    uniform = (["--device", "cpu"], ["--attention-backend=torch_native"], ["--decode-attention-backend", "triton"])
    for further in uniform:
        assert plan_serving(made.path, target.path, mode="cap-accept", further=further).environment
        with pytest.raises(ValueError, match=f"{further[0].partition('=')[0]}.*flashinfer, fa3"):
            plan_serving(made.path, target.path, mode="compact", further=further)
    assert plan_serving(made.path, target.path, mode="compact", further=["--attention-backend", "fa3"]).environment
    launch = json.loads((made.path / "launch.json").read_text())
    assert launch["scheduled"]["compact"].startswith("SGLANG_RAGGED_VERIFY_MODE=compact python -m sglang")
    assert f"{sps} draft/sps.json" in launch["scheduled"]["compact"]
    with pytest.raises(ValueError, match="SGLANG_RAGGED_VERIFY_MODE"):
        plan_serving(made.path, target.path, environment={"SGLANG_RAGGED_VERIFY_MODE": "static"})
    card = (draft / "README.md").read_text()
    assert "| all | 2.50 | 30.0 | 45.0 | 1.50 (1.40 to 1.61) |" in card
    assert "| code | 2.50 | 30.0 | 45.0 | - |" in card
    assert "a processor, 2 threads" in card
    assert launch["command"] in card
    assert "`sps.json`" in card


def test_files_that_do_not_fit_are_refused(target: Artifact, tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path / "d", target, "dspark")
    good = calibration(tmp_path / "good", 4)
    for others, said in (
        ((calibration(tmp_path / "stale", 3),), "3 temperatures, the drafter makes 4"),
        ((good, costs(tmp_path / "flat", FLAT)), "a flat table"),
    ):
        with pytest.raises(StageError, match=said):
            export.run(inputs(target, drafter, *others), ExportParams(), FakeContext(tmp_path / said))


def test_without_confidence_or_costs_a_mode_is_refused(target: Artifact, tmp_path: Path) -> None:
    empty = replace(calibration(tmp_path / "none", 4))
    (empty.path / "sts.json").unlink()  # an optional calibration of a drafter without confidence
    made = export_of(tmp_path / "a", target, drafter_of(tmp_path / "d", target, "dflash"), empty)
    manifest = json.loads((made.path / "draft/manifest.json").read_text())
    assert manifest["schedule"] == {}
    with pytest.raises(ValueError, match="no confidence"):
        scheduling(manifest, mode="cap-accept")
    spark = export_of(tmp_path / "b", target, drafter_of(tmp_path / "s", target, "dspark"))
    with pytest.raises(ValueError, match="no costs"):
        plan_serving(spark.path, target.path, mode="compact")
    alone = plan_serving(spark.path, target.path, mode="cap-accept")
    assert alone.environment
    assert "every proposal may be accepted" in alone.notes[0]
    assert "Nothing yet" in (spark.path / "draft/README.md").read_text()


def test_positions_are_stretched_when_asked(target: Artifact, tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path / "d", target, "dflash")
    made = export_of(tmp_path, target, drafter, yarn_factor=4.0)
    config = json.loads((made.path / "draft/config.json").read_text())
    wanted = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert config["rope_scaling"] == wanted
    assert config["rope_parameters"] == {**wanted, "rope_theta": config["rope_theta"]}
    assert config["max_position_embeddings"] == 4 * 4096
    assert "served with the same factor, 4" in (made.path / "draft/README.md").read_text()
    from transformers import AutoConfig

    assert AutoConfig.from_pretrained(made.path / "draft").rope_parameters == config["rope_parameters"]
    from specflow.drafters.loading import load_network
    from specflow.serving.verification.parity import as_stretched, export_as_drafter

    trained = drafter.path / "drafter"
    stretched = as_stretched(made.path / "draft", trained, tmp_path / "stretched")
    cast = export_as_drafter(made.path / "draft", stretched, tmp_path / "cast", cast_only=True)
    exported = export_as_drafter(made.path / "draft", stretched, tmp_path / "exported")
    networks: list[Any] = [load_network(path) for path in (stretched, cast, exported)]
    assert networks[0].geometry == networks[1].geometry == networks[2].geometry
    assert networks[0].geometry.rope_parameters["factor"] == 4.0
    plain = export_of(tmp_path / "plain", target, drafter)
    assert as_stretched(plain.path / "draft", trained, tmp_path / "unused") == trained


def test_speculators_format_of_an_eagle3(target: Artifact, tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path / "d", target, "eagle3")
    made = export_of(tmp_path, target, drafter, also=("speculators",))
    config = json.loads((made.path / "speculators/config.json").read_text())
    ours = json.loads((made.path / "draft/config.json").read_text())
    assert config["speculators_model_type"] == config["speculators_config"]["algorithm"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [k + 1 for k in LAYERS]  # inputs of layers
    assert config["norm_before_residual"] is False  # its default is the other one
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    layer = config["transformer_layer_config"]
    for key in ("hidden_size", "intermediate_size", "rope_theta", "max_position_embeddings", "vocab_size"):
        assert layer[key] == ours[key], key
    theirs, own = (load_file(str(made.path / n / "model.safetensors")) for n in ("speculators", "draft"))
    assert {n.replace("midlayer.", "layers.0."): t.shape for n, t in own.items()} == {
        n: t.shape for n, t in theirs.items()
    }
    assert torch.equal(theirs["layers.0.self_attn.q_proj.weight"], own["midlayer.self_attn.q_proj.weight"])
    assert torch.equal(theirs["d2t"], own["d2t"])


def test_what_the_speculators_format_cannot_say_is_refused(target: Artifact, tmp_path: Path) -> None:
    normed = drafter_of(tmp_path / "n", target, "eagle3", fc_norm=True, num_layers=2)
    for drafter, said in (
        (normed, "fc_norm True, num_layers 2"),
        (drafter_of(tmp_path / "d", target, "dflash"), "eagle3 only"),
    ):
        with pytest.raises(StageError, match=said):
            export.run(inputs(target, drafter), ExportParams(also=("speculators",)), FakeContext(tmp_path / said))
