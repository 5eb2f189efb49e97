"""EAGLE in the trainer: splits, overfitting, the walk, and the whole stage with a limited vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specflow.config.drafter import TrainParams
from specflow.drafters.eagle import method as eagle
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.eagle.params import Params
from specflow.drafters.loading import load_network, read_manifest
from specflow.drafters.training import Progress
from specflow.training.data import Documents, source_of
from specflow.training.evaluate import evaluate
from specflow.training.objective import Objective
from specflow.training.proposer_walk import walk_with_proposer
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, accumulate_gradients
from tests.drafters.eagle3_helpers import ends
from tests.drafters.eagle_helpers import learner, network, proposer
from tests.drafters.helpers import tables
from tests.stages.train_helpers import make_target, run, write_features
from tests.training.helpers import MemorySource, Monitor

torch.set_num_threads(1)


def documents(lengths: list[int] | None = None, prompt: int = 8) -> Documents:
    """Whose answers the teacher knows: its last hidden states point at the next token. No layer is captured."""
    source = MemorySource(lengths or [24, 31, 20, 40, 27, 33, 22, 29], prompt=prompt)
    _, head = tables()
    for stored in source.stored:
        stored.last_hidden_TH = 0.3 * head[stored.token_ids_T.roll(-1)]
    return Documents(source, columns=[], last_hidden=True)


def gradients(per_pass: int | None, *, backwards: bool = False) -> tuple[StepSums, dict[str, torch.Tensor]]:
    docs, net = documents(), network(limited=True, num_layers=2)
    sources = [source_of(docs.get(p), anchors=6, seed=3, epoch=0) for p in range(6)]
    own = learner(net, noise=0.2)
    sums = accumulate_gradients(
        Wrapped(Objective(own), ranks=Ranks()),
        own,
        sources[::-1] if backwards else sources,
        progress=Progress(0, 1),
        ranks=Ranks(),
        documents_per_pass=per_pass,
    )
    return sums, {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("per_pass", [1, 4])
def test_any_split_into_passes_gives_the_same_loss_and_gradients(per_pass: int) -> None:
    """Noise included, which follows the document and not the pass."""
    whole, expected = gradients(None)
    split, found = gradients(per_pass, backwards=True)
    assert whole.numerators["outside_vocabulary"] == split.numerators["outside_vocabulary"] > 0
    assert whole.denominators == split.denominators
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-5 * value.norm(), name


def trained(steps: int, scratch: Path, *, rate: float) -> tuple[EagleNetwork, Documents]:
    from specflow.training.loop import Trainer

    docs, net = documents(), network(rms_norm_eps=1e-5).train()
    options: dict[str, Any] = {
        "steps": steps, "documents_per_step": 3, "learning_rate": rate, "evaluate_every": steps, "clip_norm": 0.5,
    }  # fmt: skip
    params = Params(method="eagle", draft_steps=4, noise=0.02, train=TrainParams(**options))
    Trainer(
        method=eagle, network=net, ends=ends(), documents=docs, train=range(3), heldout=range(3), params=params,
        scratch=scratch, monitor=Monitor(),
    ).run()  # fmt: skip
    return net, docs


def test_a_memorised_text_is_accepted_whole(tmp_path: Path) -> None:
    net, docs = trained(300, tmp_path, rate=6e-3)
    texts = [docs.get(p) for p in range(3)]
    found = walk_with_proposer(proposer(net), texts)
    lengths = [int(d.supervised_T.sum()) - 1 for d in texts]
    assert found.walk.delivered == sum(lengths)
    assert found.walk.rounds == sum(-(-n // 5) for n in lengths)
    beside = evaluate(learner(net), texts, proposals=4, proposer=lambda: proposer(net))
    assert (beside.walk.rounds, beside.walk.delivered) == (found.walk.rounds, found.walk.delivered)
    assert beside.correct == beside.judged > 60


def test_the_batched_walk_equals_the_proposers(tmp_path: Path) -> None:
    net, docs = trained(60, tmp_path, rate=4e-3)
    texts = [docs.get(p) for p in range(4)]
    alone = walk_with_proposer(proposer(net), texts)
    assert 1.2 < alone.walk.tau < 4.7  # neither trivial end, so that the comparison means something
    beside = evaluate(learner(net), texts, proposals=4, proposer=lambda: proposer(net))
    assert beside.walk == alone.walk


def test_a_text_supervised_from_its_first_token_is_walked() -> None:
    docs, net = documents([20, 24], prompt=0), network(limited=True)
    texts = [docs.get(p) for p in range(2)]
    alone = walk_with_proposer(proposer(net), texts)
    assert evaluate(learner(net), texts, proposals=4, proposer=lambda: proposer(net)).walk == alone.walk


TRAIN: dict[str, Any] = {
    "steps": 20, "documents_per_step": 2, "learning_rate": 3e-3, "evaluate_every": 10, "log_every": 5, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target = make_target(tmp_path_factory.mktemp("target"))
    return target, write_features(tmp_path_factory.mktemp("features"), target)


def params(size: int | None, **train: Any) -> Params:
    return Params(method="eagle", draft_steps=3, draft_vocab_size=size, train=TrainParams(**{**TRAIN, **train}))


def test_the_stage_trains_without_captured_layers(tmp_path: Path, data: tuple[Path, Path]) -> None:
    metrics, context = run(tmp_path, *data, params(280))
    assert any("draft vocabulary of 280 of 300 tokens" in message for message in context.messages)
    assert any("the target's last 1 layers" in message for message in context.messages)
    manifest = read_manifest(context.output)
    assert (manifest.method, manifest.num_proposals, manifest.block_size) == ("eagle", 3, 4)
    assert (manifest.layer_ids, manifest.feature_contract.layer_ids) == ((), (0, 2))
    net = load_network(context.output)
    assert isinstance(net, EagleNetwork)
    assert load_file(context.output / "drafter" / "model.safetensors")["d2t"].dtype == torch.int64
    lines = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    for name in ("loss_feature", "loss_soft_ce"):
        assert losses[-1][name] < losses[0][name]
    assert all(0 <= line["loss_outside_vocabulary"] < 1 for line in losses)
    assert metrics["tau_heldout"] >= 1.0


def test_layers_are_not_asked_for() -> None:
    with pytest.raises(ValueError, match="layers for a drafter that reads none"):
        Params(method="eagle", layer_ids=(1, 2))
    assert Params(method="eagle").layers_of((1, 2)) == ()


def test_what_a_pass_holds_grows_with_its_rows() -> None:
    own = learner(network())
    one, two = (own.pass_bytes(anchors=0, context_rows=rows, softmax_rows=97) for rows in (1000, 2000))
    assert 1.8 * one < two + one < 4 * one
