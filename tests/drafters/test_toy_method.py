"""A method is one folder: with ``methods/toy`` found beside the others, it is configured, trained, walked, loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import specflow.drafters
from specflow.config.drafter import TrainParams
from specflow.config.methods import method_params
from specflow.drafters.loading import load_drafter, read_manifest
from specflow.drafters.registry import get_method, method_names
from specflow.drafters.training import Progress, Source
from specflow.features.reader import FeatureReader
from specflow.training.data import Documents, source_of
from specflow.training.objective import Objective
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, WrongDenominator, accumulate_gradients
from tests.stages.train_helpers import make_target, run, write_features
from tests.training.helpers import documents, ends

torch.set_num_threads(1)
METHODS = Path(__file__).parent / "methods"
TRAIN = TrainParams(
    steps=60, documents_per_step=4, anchors_per_document=30, learning_rate=3e-2, evaluate_every=20, threads=1
)


@pytest.fixture(autouse=True, scope="module")
def _toy_is_there() -> Iterator[None]:
    specflow.drafters.__path__.append(str(METHODS))
    method_params.cache_clear()
    yield
    specflow.drafters.__path__.remove(str(METHODS))
    method_params.cache_clear()


def test_it_trains_walks_and_loads(tmp_path: Path) -> None:
    assert {"dflash", "toy"} <= set(method_names())
    target = make_target(tmp_path / "target")
    features = write_features(tmp_path / "features", target)
    params = method_params()["toy"](method="toy", train=TRAIN)
    metrics, context = run(tmp_path / "run", target, features, params)
    manifest = read_manifest(context.output)
    assert (manifest.method, manifest.num_proposals, manifest.block_size) == ("toy", 2, 3)
    assert (manifest.layer_ids, manifest.mask_token, manifest.mask_token_id) == ((0, 2), None, None)
    lines = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    assert losses[-1]["loss_likelihood"] < 0.5 * losses[0]["loss_likelihood"]
    assert losses[-1]["loss_sure"] >= 0
    assert [line["step"] for line in lines if "tau" in line] == [0, 20, 40, 60]
    assert metrics["tau_heldout"] >= 1.0
    assert metrics["teacher_forced_accuracy"] is None
    assert metrics["anchors"] == 60 * 4 * 17  # of 24 tokens, 18 are answers: all 17 legal anchors

    class Host:
        precision = "fp32"

        def __init__(self) -> None:
            from specflow.drafters.target_weights import TargetWeights

            weights = TargetWeights(target)
            self._embedding, self._head = weights.embedding().float(), weights.head().float()

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return self._embedding[ids]

        def head(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden @ self._head.T

    from specflow.training.proposer_walk import walk_with_proposer

    reader = FeatureReader(features)
    docs = Documents(reader, columns=[0, 1])
    found = walk_with_proposer(load_drafter(context.output, Host()), [docs.get(p) for p in reader.indices("heldout")])
    assert found.walk.tau == metrics["tau_heldout"]


def toy_step(
    per_pass: int | None, sources: list[Source], *, wrong: bool = False
) -> tuple[StepSums, dict[str, torch.Tensor]]:
    method: Any = get_method("toy")
    params = method_params()["toy"](method="toy", train=TRAIN)
    network = method.build_network({"hidden_size": 32, "proposals": 2, "layer_ids": [0]})
    method.initialise(network, params, None, None)
    learner = method.build_learner(network, ends(), params)
    if wrong:
        learner.denominators = lambda batch, progress: {"likelihood": 1.0, "sure": 1.0}
    sums = accumulate_gradients(
        Wrapped(Objective(learner), ranks=Ranks()),
        learner,
        sources,
        progress=Progress(30, 60),
        ranks=Ranks(),
        documents_per_pass=per_pass,
    )
    return sums, {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("per_pass", [1, 2, 4])
def test_splits_are_equal_also_where_the_network_decides_the_denominator(per_pass: int) -> None:
    _, docs = documents()
    sources = [source_of(docs.get(p), anchors=6, seed=3, epoch=0) for p in range(6)]
    whole, expected = toy_step(None, sources)
    split, found = toy_step(per_pass, sources)
    assert 0 < whole.denominators["sure"] < whole.denominators["likelihood"] == whole.counts.labels
    ratios = [whole.numerators[name] / whole.denominators[name] for name in ("likelihood", "sure")]
    assert whole.loss == pytest.approx(ratios[0] + 0.5 * 30 / 59 * ratios[1])
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-5 * value.norm(), name


def test_denominators_that_are_not_the_objectives_are_an_error() -> None:
    _, docs = documents()
    with pytest.raises(WrongDenominator, match="loss term 'likelihood': expected the denominator 1 that"):
        toy_step(None, [source_of(docs.get(0), anchors=6, seed=3, epoch=0)], wrong=True)


CONFIGURED = """
import specflow.drafters
specflow.drafters.__path__.append({methods!r})
from pathlib import Path
from specflow.config.flags import flags_of
from specflow.config.loading import load_config
from specflow.workflow.registry import STAGES

flags = {{flag.name: flag.leaf for flag in flags_of("train")}}
assert {{"dflash", "toy"}} <= set(flags["method"].choices), flags["method"]
assert "proposals" in flags and "block-size" in flags
text = Path({config!r}).read_text()
mixed = text.replace("drafters:\\n", "drafters:\\n  small: {{method: toy, proposals: 3}}\\n")
Path({made!r}).write_text(mixed)
config = load_config(Path({made!r})).config
assert type(config.drafters["small"]).__module__ == "specflow.drafters.toy.params"
assert config.drafters["small"].proposals == 3
assert config.drafters["dflash"].block_size == 4
Path({made!r}).write_text(mixed.replace("proposals", "propsals").replace("block_size: 4", "proposals: 4"))
try:
    load_config(Path({made!r}))
except Exception as error:
    print(error)
"""


def test_it_is_configured_beside_the_others(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    made = root / "configs" / "smoke.yaml"
    code = CONFIGURED.format(methods=str(METHODS), config=str(made), made=str(tmp_path / "mixed.yaml"))
    config = tmp_path / "prompts-smoke"
    config.symlink_to(root / "configs" / "prompts-smoke")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert "drafters.small.propsals" in done.stdout
    assert "drafters.dflash.proposals" in done.stdout
