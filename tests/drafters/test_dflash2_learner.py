"""The loss of DFlash 2 against float64 loops, its split and schedule; the walk and its figures by the proposer."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specflow.config.drafter import TrainParams
from specflow.drafters.block_loss import BlockLoss
from specflow.drafters.dflash import method as dflash_method
from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dflash.learner import TERM
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.objective import weights_like
from specflow.drafters.dflash.params import Params as DFlashParams
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.drafters.dflash.walk import previous_tokens
from specflow.drafters.dflash2 import method
from specflow.drafters.dflash2.learner import MISSED, SELECTOR, DFlash2Learner
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.objective import SelectorLoss
from specflow.drafters.dflash2.params import Params
from specflow.drafters.training import Progress, Source
from specflow.training.data import TrainingDocument, source_of
from specflow.training.evaluate import evaluate
from specflow.training.init_from import warm_start
from specflow.training.loop import Trainer
from specflow.training.objective import Objective
from specflow.training.proposer_walk import walk_with_proposer
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, accumulate_gradients
from tests.drafters.dflash2_helpers import committed_rows, network2, proposer2, reference_lattice
from tests.drafters.helpers import document, network, tables
from tests.training.helpers import Monitor, documents, ends

torch.set_num_threads(1)
DECAY = 2.5
PLAIN = SelectorLoss(ramp=0.0)


def learner_of(net: DFlash2Network, *, loss: BlockLoss | None = None, **selector: Any) -> DFlash2Learner:
    own = SelectorLoss(**{"ramp": 0.0, **selector})
    return DFlash2Learner(net, ends(), decay=DECAY, loss=loss or BlockLoss(), selector=own)


def sources() -> list[Source]:
    _, docs = documents()
    return [source_of(docs.get(p), anchors=6, seed=3, epoch=0) for p in range(6)]


def gradients(learner: DFlash2Learner, per_pass: int | None = None) -> tuple[StepSums, dict[str, torch.Tensor]]:
    learner.network.train().zero_grad()
    wrapped = Wrapped(Objective(learner), ranks=Ranks())
    sums = accumulate_gradients(
        wrapped, learner, sources(), progress=Progress(0, 1), ranks=Ranks(), documents_per_pass=per_pass
    )
    return sums, {n: p.grad.clone() for n, p in learner.network.named_parameters() if p.grad is not None}


LOSSES = {
    "ce": BlockLoss(),
    "dpace": BlockLoss(weighting="dpace"),
    "lk": BlockLoss(kind="lk_lambda"),
}


def taught_sources(base: list[Source]) -> list[Source]:
    g = torch.Generator().manual_seed(8)
    return [
        dataclasses.replace(s, last_hidden_TH=torch.randn(len(s.token_ids_T), 32, generator=g).bfloat16()) for s in base
    ]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("per_pass", [1, 4])
def test_any_split_into_passes_gives_the_same_loss_and_gradients(
    name: str, per_pass: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = taught_sources(sources())
    monkeypatch.setitem(globals(), "sources", lambda: base)
    whole, expected = gradients(learner_of(network2(), loss=LOSSES[name]))
    split, found = gradients(learner_of(network2(), loss=LOSSES[name]), per_pass)
    assert found.keys() == expected.keys()
    assert len(found) == 2 * 11 + 3 + 2 * 4 + 3
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    for key, value in expected.items():
        assert (found[key] - value).norm() <= 2e-5 * value.norm(), key


def test_terms_equal_float64_loops() -> None:
    net, (_, head) = network2(), tables()
    sums, _ = gradients(learner_of(net, weight=0.7))
    selector = missed = total = ce = 0.0
    found_missed = False
    for source in sources():
        doc = document(0)
        doc.ids, doc.supervised, doc.features = source.token_ids_T, source.supervised_T, source.features_TKH.float()
        for anchor in source.anchors.tolist():
            hidden = method.training_hidden(
                net, ends().embed, one_anchor(source, anchor)
            )[0].detach()  # fmt: skip
            candidates, score = reference_lattice(net, hidden, 0)
            logits = hidden.double() @ head.double().T
            for j in range(1, 5):
                at = anchor + j
                if at >= len(source.token_ids_T) or not source.supervised_T[anchor : at + 1].all():
                    break
                weight, label = math.exp(-(j - 1) / DECAY), int(source.token_ids_T[at])
                previous = int(source.token_ids_T[at - 1])
                total += weight
                ce -= weight * float(logits[j - 1].log_softmax(dim=0)[label])
                if label in candidates[j - 1]:
                    row = torch.tensor([score(j - 1, previous, t) for t in candidates[j - 1]], dtype=torch.float64)
                    selector -= weight * float(row.log_softmax(dim=0)[candidates[j - 1].index(label)])
                else:
                    missed, found_missed = missed + weight, True
    assert found_missed
    assert selector > 0
    for name, value in ((TERM, ce), (SELECTOR, selector), (MISSED, missed)):
        assert sums.numerators[name] == pytest.approx(value, rel=1e-4), name
        assert sums.denominators[name] == pytest.approx(total, rel=1e-5), name
    assert sums.loss == pytest.approx((ce + 0.7 * selector) / total, rel=1e-4)


def one_anchor(source: Source, anchor: int) -> Source:
    return dataclasses.replace(source, anchors=torch.tensor([anchor]))


def test_missed_positions_give_the_selector_no_gradient() -> None:
    """With one candidate per position there is nothing to choose: the term is zero, and so is its gradient."""
    net = network2(selector_top_k=1)
    sums, found = gradients(learner_of(net))
    assert sums.numerators[SELECTOR] == 0.0
    assert sums.numerators[MISSED] > 0
    assert all(not found[n].any() for n in found if n.startswith("candidate_selector"))


def test_stop_gradient_keeps_the_selector_from_the_backbone() -> None:
    backbone = gradients(learner_of(network2(), weight=0.0))[1]
    stopped, flowing = (gradients(learner_of(network2(), stop_gradient=stop))[1] for stop in (True, False))
    for name, value in backbone.items():
        if name.startswith("candidate_selector"):
            assert stopped[name].any()
            torch.testing.assert_close(stopped[name], flowing[name])
        else:
            torch.testing.assert_close(stopped[name], value, rtol=1e-5, atol=1e-8)
            assert not torch.allclose(flowing[name], value, rtol=1e-3, atol=1e-8), name


def test_the_selector_s_weight_follows_the_steps() -> None:
    params = SelectorLoss(weight=2.0, warmup=0.2, ramp=0.5)
    assert [round(params.at(share), 6) for share in (0.0, 0.19, 0.2, 0.45, 0.7, 1.0)] == [0, 0, 0, 1.0, 2.0, 2.0]
    learner = learner_of(network2(), weight=2.0, warmup=0.2, ramp=0.5)
    assert learner.weights(Progress(9, 21)) == {TERM: 1.0, SELECTOR: pytest.approx(1.0), MISSED: 0.0}
    bare = learner_of(network2(selector_rank=0, selector_top_k=0))
    assert bare.weights(Progress(0, 1)) == {TERM: 1.0}
    assert set(gradients(bare)[0].numerators) == {TERM}


def test_a_restricted_softmax_names_candidates_by_their_tokens() -> None:
    """By hand over the listed tokens: candidates are rows of the list, codebooks are read by token."""
    _, docs = documents()
    some = [source_of(docs.get(p), anchors=6, seed=3, epoch=0) for p in range(6)]
    used = torch.cat([s.token_ids_T for s in some]).unique()
    net = network2(selector_top_k=2)
    whole = learner_of(net)
    batch = whole.prepare(some)
    assert batch is not None
    restricted = DFlash2Learner(net, ends(used), decay=DECAY, loss=BlockLoss(), selector=PLAIN)
    terms = {t.name: t.numerator.item() for t in restricted.objective(batch, Progress(0, 1))}
    _, head = tables()
    valid = batch.valid_NM
    hidden = hidden_of(net, batch, ends().embed)[valid]
    logits = hidden @ head[used].T
    rows = logits.topk(2, dim=1).indices
    tokens, labels = used[rows], batch.labels_NM[valid]
    assert net.selector is not None
    pairs = net.selector.pairs(
        hidden, previous_tokens(batch.anchor_ids_N, batch.labels_NM)[valid].unsqueeze(1), tokens
    ).squeeze(1)
    log_q = (logits.gather(1, rows) + pairs).log_softmax(dim=1)
    there = tokens == labels.unsqueeze(1)
    expected = -(log_q[there] * weights_like(valid, decay=DECAY)[valid][there.any(dim=1)]).sum()
    assert terms[SELECTOR] == pytest.approx(expected.item(), rel=1e-4)


# Beginning.


def params(**changes: Any) -> Params:
    given = {
        "train": TrainParams(initialise="random", steps=3),
        "num_layers": 2,
        "block_size": 5,
        "conv_group_size": 8,
        "selector_rank": 6,
        "selector_top_k": 4,
    }
    return Params(method="dflash2", **{**given, **changes})


def test_a_fresh_drafter_begins_as_its_dflash_would() -> None:
    target: Any = None  # nothing is read of it for a random start
    made, plain = network2(3), network(4)
    method.initialise(made, params(), target, torch.zeros(2, 3, 32))
    own = DFlashParams(method="dflash", num_layers=2, block_size=5, train=params().train)
    dflash_method.initialise(plain, own, target, torch.zeros(2, 3, 32))
    state = made.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    for layer in made.convolved_layers:
        for conv in (layer.attention_conv, layer.mlp_conv):
            assert bool((conv.base_kernel[:, 0] == 1).all())
            assert not conv.base_kernel[:, 1:].any()
            assert not conv.kernel_projection.weight.any()
    assert made.selector is not None
    assert not made.selector.successor_codebook.any()
    assert made.selector.predecessor_codebook.std().item() == pytest.approx(params().selector_init, rel=0.1)
    again = network2(9)
    method.initialise(again, params(), target, torch.zeros(2, 3, 32))
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters(), strict=True))


def test_a_warm_start_from_a_dflash_drafter_is_that_drafter(tmp_path: Path) -> None:
    there: DFlashNetwork = network(1)
    save_file(dict(there.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(there.geometry.to_dict()))
    target: Any = None
    here = network2(2)
    method.initialise(here, params(), target, torch.zeros(2, 3, 32))
    found = warm_start(here, tmp_path, config=method.network_config(here))
    assert set(found.new) == {n for n in here.state_dict() if "conv" in n or "candidate_selector" in n}
    assert (found.left, found.different) == ({}, {})
    doc, (embedding, head) = document(3), tables()
    plain = DFlashProposer(there, embed=lambda i: embedding[i], head=lambda h: h @ head.T)
    plain.reset(60)
    made = proposer2(here, doc, 12)
    plain.extend(committed_rows(doc, 0, 12))
    assert torch.equal(plain.logits(7), made.logits(7))
    assert plain.propose(7).tolist() == made.propose(7).tolist()


# The walk.


def heldout() -> list[TrainingDocument]:
    _, docs = documents()
    return [docs.get(i) for i in range(8)]


def test_the_walk_is_the_proposer_s_and_its_figures_add_up() -> None:
    net, texts = network2(selector_top_k=8).eval(), heldout()
    with torch.no_grad():  # a drafter that is right now and then: the features hold the token before
        net.norm.weight.mul_(0.5)

    def proposer() -> Any:
        return proposer2(net)

    learner = learner_of(net)
    found = evaluate(learner, texts, proposals=4, proposer=proposer)
    apart = walk_with_proposer(proposer(), texts)
    assert found.walk.to_dict() == apart.walk.to_dict()
    line = found.to_dict()
    json.dumps(line, allow_nan=False)
    figures = line["selector"]
    ended = sum(found.walk.reached) - sum(found.walk.accepted)
    assert figures["ended_by_backbone"] + figures["ended_by_selector"] == ended
    for recall, accuracy, both in zip(
        figures["recall_per_position"], figures["accuracy_per_position"], line["conditional_per_position"], strict=True
    ):
        if both is not None and accuracy is not None:
            assert recall * accuracy == pytest.approx(both)
    oracle, backbone = (line["alternatives"][name]["tau"] for name in ("oracle", "backbone"))
    assert oracle >= line["tau"]
    assert oracle >= backbone >= 1.0
    plain = network2(selector_rank=0, selector_top_k=0).eval()
    plain.load_state_dict(net.state_dict(), strict=False)
    assert evaluate(learner_of(plain), texts, proposals=4, proposer=proposer).walk.tau == backbone


def test_a_memorised_text_is_accepted_whole(tmp_path: Path) -> None:
    _, docs = documents([24, 22, 24, 22])
    own = TrainParams(
        steps=150, documents_per_step=2, anchors_per_document=16, learning_rate=4e-3, evaluate_every=150,
        checkpoint_every=1000, log_every=50,
    )  # fmt: skip
    net = network2(3, selector_top_k=4)
    method.become_fresh(net, seed=0, std=0.1)
    made = params(train=own, position_decay=4.0)
    trained = Trainer(
        method=method, network=net.train(), ends=ends(), documents=docs, train=[0, 1], heldout=[0, 1], params=made,
        scratch=tmp_path, monitor=Monitor(),
    ).run()  # fmt: skip
    assert trained.best is not None
    acceptance = trained.best["conditional_per_position"]
    assert min(a for a in acceptance if a is not None) == 1.0
    lines = [json.loads(line) for line in trained.curve.read_text().splitlines()]
    losses = [line["loss_selector"] for line in lines if "loss_selector" in line]
    assert losses[-1] < losses[0]
    assert all("loss_selector_missed" in line for line in lines if "loss" in line)
