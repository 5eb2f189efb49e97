"""EAGLE-3 in the trainer: splits, overfitting, the walk, and the whole stage with a draft vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specflow.config.drafter import TrainParams
from specflow.drafters.eagle3 import method as eagle3
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.eagle3.params import Params
from specflow.drafters.loading import load_network, read_manifest
from specflow.drafters.training import Progress
from specflow.stages.contract import StageError
from specflow.training.data import Documents, source_of
from specflow.training.evaluate import evaluate
from specflow.training.objective import Objective
from specflow.training.proposer_walk import walk_with_proposer
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, accumulate_gradients
from tests.drafters.eagle3_helpers import ends, learner, network, proposer
from tests.drafters.helpers import tables
from tests.stages.train_helpers import make_target, run, write_features
from tests.training.helpers import MemorySource, Monitor

torch.set_num_threads(1)


def documents() -> Documents:
    """Whose answers the teacher knows: its last hidden states point at the next token."""
    source = MemorySource([24, 31, 20, 40, 27, 33, 22, 29])
    _, head = tables()
    for stored in source.stored:
        stored.last_hidden_TH = 0.3 * head[stored.token_ids_T.roll(-1)]
    return Documents(source, columns=[0, 1, 2], last_hidden=True)


def gradients(per_pass: int | None, *, ranks_order: bool = False) -> tuple[StepSums, dict[str, torch.Tensor]]:
    docs, net = documents(), network(own_head=True, num_layers=2)
    sources = [source_of(docs.get(p), anchors=6, seed=3, epoch=0) for p in range(6)]
    own = learner(net, depths=5)
    sums = accumulate_gradients(
        Wrapped(Objective(own), ranks=Ranks()),
        own,
        sources[::-1] if ranks_order else sources,
        progress=Progress(0, 1),
        ranks=Ranks(),
        documents_per_pass=per_pass,
    )
    return sums, {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("per_pass", [1, 2, 4])
def test_any_split_into_passes_gives_the_same_loss_and_gradients(per_pass: int) -> None:
    whole, expected = gradients(None)
    split, found = gradients(per_pass, ranks_order=True)
    assert whole.numerators["outside_vocabulary"] == split.numerators["outside_vocabulary"] > 0
    assert whole.denominators == split.denominators
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-5 * value.norm(), name


def trained(steps: int, scratch: Path) -> tuple[Eagle3Network, Documents]:
    from specflow.training.loop import Trainer

    docs, net = documents(), network().train()
    options: dict[str, Any] = {
        "steps": steps, "documents_per_step": 3, "learning_rate": 6e-3, "evaluate_every": steps, "clip_norm": 0.5,
    }  # fmt: skip
    params = Params(method="eagle3", draft_steps=4, ttt_length=5, train=TrainParams(**options))
    Trainer(
        method=eagle3, network=net, ends=ends(), documents=docs, train=range(3), heldout=range(3), params=params,
        scratch=scratch, monitor=Monitor(),
    ).run()  # fmt: skip
    return net, docs


def test_a_memorised_text_is_accepted_whole(tmp_path: Path) -> None:
    net, docs = trained(150, tmp_path)
    texts = [docs.get(p) for p in range(3)]
    found = walk_with_proposer(proposer(net), texts)
    lengths = [int(d.supervised_T.sum()) - 1 for d in texts]
    assert found.walk.delivered == sum(lengths)
    assert found.walk.rounds == sum(-(-n // 5) for n in lengths)
    beside = evaluate(learner(net), texts, proposals=4, proposer=lambda: proposer(net))
    assert (beside.walk.rounds, beside.walk.delivered) == (found.walk.rounds, found.walk.delivered)
    assert beside.to_dict()["acceptance_per_position"] == [1.0] * 4
    assert beside.correct == beside.judged > 60


def test_the_batched_walk_equals_the_proposers(tmp_path: Path) -> None:
    net, docs = trained(40, tmp_path)
    texts = [docs.get(p) for p in range(4)]
    alone = walk_with_proposer(proposer(net), texts)
    assert 1.2 < alone.walk.tau < 4.7  # neither trivial end, so that the comparison means something
    beside = evaluate(learner(net), texts, proposals=4, proposer=lambda: proposer(net))
    assert beside.walk == alone.walk


def test_a_text_supervised_from_its_first_token_is_walked() -> None:
    source = MemorySource([20, 24], prompt=0)
    docs = Documents(source, columns=[0, 1, 2], last_hidden=True)
    texts, net = [docs.get(p) for p in range(2)], network(own_head=True)
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
    given = TrainParams(**{**TRAIN, **train})
    return Params(method="eagle3", draft_steps=3, ttt_length=4, draft_vocab_size=size, train=given)


def test_the_stage_chooses_a_vocabulary_and_stores_it(tmp_path: Path, data: tuple[Path, Path]) -> None:
    metrics, context = run(tmp_path, *data, params(280))
    assert any("draft vocabulary of 280 of 300 tokens" in message for message in context.messages)
    stored = load_file(context.output / "drafter" / "model.safetensors")
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (torch.int64, torch.bool)
    ids = stored["d2t"] + torch.arange(280)
    assert torch.equal(stored["t2d"].nonzero().squeeze(1), ids)
    manifest = read_manifest(context.output)
    assert (manifest.method, manifest.num_proposals, manifest.layer_ids) == ("eagle3", 3, (0, 2))
    net = load_network(context.output)
    assert isinstance(net, Eagle3Network)
    assert torch.equal(net.draft_ids_D if net.draft_ids_D is not None else ids[:0], ids)
    lines = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    assert losses[-1]["loss_soft_ce"] < losses[0]["loss_soft_ce"]
    assert all(0 <= line["loss_outside_vocabulary"] < 1 for line in losses)
    assert metrics["tau_heldout"] >= 1.0


def test_two_ranks_train_what_one_trains(tmp_path: Path, data: tuple[Path, Path]) -> None:
    both, alone = (
        load_file(run(tmp_path / name, *data, params(280, steps=4, **options))[1].output / "drafter/model.safetensors")
        for name, options in (("both", {"ranks": 2}), ("alone", {"documents_per_pass": 1}))
    )
    assert both.keys() == alone.keys()
    assert all(torch.equal(both[name], alone[name]) for name in both)


def test_a_vocabulary_that_does_not_fit_is_an_error(tmp_path: Path, data: tuple[Path, Path]) -> None:
    with pytest.raises(StageError, match="draft_vocab_size: a draft vocabulary of 301 tokens"):
        run(tmp_path, *data, params(301))


def test_another_vocabulary_is_no_start(tmp_path: Path, data: tuple[Path, Path]) -> None:
    _, first = run(tmp_path / "first", *data, params(280, steps=2))
    weights = first.output / "drafter" / "model.safetensors"
    from safetensors.torch import save_file

    changed = load_file(weights)
    changed["d2t"][-1] += 1
    save_file(changed, weights)
    with pytest.raises(StageError, match="d2t: other values there"):
        run(tmp_path / "second", *data, params(280, steps=2, init_from=str(first.output)))
