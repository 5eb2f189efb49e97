"""The sequential heads and the confidence head against plain loops in float64, and the serving engine's names."""

from __future__ import annotations

import math

import pytest
import torch

from specflow.drafters.dspark.geometry import HEADS, DSparkGeometry
from specflow.drafters.dspark.heads import initialise_heads
from specflow.drafters.dspark.network import DSparkNetwork
from tests.drafters.dspark_helpers import KINDS, RANK, corrected_logits, dspark_blocks, dspark_network
from tests.drafters.helpers import VOCAB, document, network

torch.set_num_threads(1)
Vector = list[float]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def reference(net: DSparkNetwork, hidden: list[Vector], anchor: int, labels: list[int]) -> tuple[list[Vector], Vector]:
    """Biases of every row and raw confidence, from the formulas: lists and loops."""
    w = {name: value.double().tolist() for name, value in net.state_dict().items()}
    w1, w2 = w["markov_head.markov_w1.weight"], w["markov_head.markov_w2.weight"]

    def linear(name: str, x: Vector) -> Vector:
        rows = zip(w[f"{name}.weight"], w[f"{name}.bias"], strict=True)
        return [sum(a * b for a, b in zip(row, x, strict=True)) + bias for row, bias in rows]

    biases, confidence, state = [], [], [0.0] * RANK
    for h, before in zip(hidden, [anchor, *labels[:-1]], strict=True):
        e = w1[before]
        if net.geometry.head == "markov":
            code = e
        elif net.geometry.head == "gated":
            code = [sigmoid(g) * x for g, x in zip(linear("markov_head.gate_proj", [*h, *e]), e, strict=True)]
        else:
            z = linear("markov_head.joint_proj", [*state, *e, *h])
            gate, candidate, out = z[:RANK], z[RANK : 2 * RANK], z[2 * RANK :]
            state = [
                sigmoid(g) * s + (1 - sigmoid(g)) * math.tanh(c) for g, s, c in zip(gate, state, candidate, strict=True)
            ]
            code = [math.tanh(o) for o in out]
        biases.append([sum(a * b for a, b in zip(row, code, strict=True)) for row in w2])
        confidence += linear("confidence_head.proj", [*h, *e])
    return biases, confidence


@pytest.mark.parametrize("head", HEADS)
def test_heads_equal_plain_loops(head: str) -> None:
    net = dspark_network(head)
    g = torch.Generator().manual_seed(4)
    hidden = torch.randn(3, 4, 32, generator=g)
    anchors, labels = torch.randint(VOCAB, (3,), generator=g), torch.randint(VOCAB, (3, 4), generator=g)
    embedded = net.embed_before(anchors, labels)
    biases = net.markov_head.codes(hidden, embedded) @ net.markov_head.markov_w2.weight.T
    assert net.confidence_head is not None
    confidence = net.confidence_head(hidden, embedded)
    for n in range(3):
        bias, raw = reference(net, hidden[n].double().tolist(), int(anchors[n]), labels[n].tolist())
        torch.testing.assert_close(biases[n].double(), torch.tensor(bias, dtype=torch.float64), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(confidence[n].double(), torch.tensor(raw, dtype=torch.float64), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_steps_equal_the_whole_block(head: str) -> None:
    net = dspark_network(head)
    hidden, embedded = torch.randn(2, 4, 32), torch.randn(2, 4, RANK)
    whole = net.markov_head.codes(hidden, embedded)
    state = net.markov_head.initial_state(hidden[:, 0])
    for i in range(4):
        code, state = net.markov_head.step(hidden[:, i], embedded[:, i], state)
        torch.testing.assert_close(code, whole[:, i], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_names_and_shapes_are_the_serving_engines(head: str) -> None:
    names = {n: tuple(v.shape) for n, v in dspark_network(head).state_dict().items()}
    backbone = set(network().state_dict())
    own = {n: shape for n, shape in names.items() if n not in backbone}
    extra = {
        "markov": {},
        "gated": {"markov_head.gate_proj.weight": (6, 38), "markov_head.gate_proj.bias": (6,)},
        "rnn": {"markov_head.joint_proj.weight": (18, 44), "markov_head.joint_proj.bias": (18,)},
    }
    assert backbone < set(names)
    assert own == {
        "markov_head.markov_w1.weight": (97, 6),
        "markov_head.markov_w2.weight": (97, 6),
        "confidence_head.proj.weight": (1, 38),
        "confidence_head.proj.bias": (1,),
        **extra[head],
    }


def test_confidence_is_fp32_under_autocast() -> None:
    net = dspark_network("rnn")
    hidden, embedded = torch.randn(2, 4, 32), torch.randn(2, 4, RANK)
    assert net.confidence_head is not None
    plain = net.confidence_head(hidden, embedded)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = net.confidence_head(hidden, embedded)
    assert torch.equal(found, plain)
    assert dspark_network(confidence=False).confidence_head is None


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_a_fresh_drafter_is_its_backbone(head: str, anchor: bool) -> None:
    net = dspark_network(head, anchor)
    initialise_heads(net.markov_head, net.confidence_head, seed=3)
    blocks = dspark_blocks(net, [document(1)], [[9, 15]])
    fresh = corrected_logits(net, blocks)
    assert float(net.markov_head.markov_w1.weight.detach().norm(dim=1).mean()) == pytest.approx(1.0, abs=0.1)
    with torch.no_grad():
        net.markov_head.markov_w1.weight.normal_()
    assert torch.equal(corrected_logits(net, blocks), fresh)
    assert not torch.equal(corrected_logits(dspark_network(head, anchor), blocks), fresh)


def test_geometry_round_trip_and_refusals() -> None:
    made = dspark_network("gated", False).geometry
    assert DSparkGeometry.from_dict(made.to_dict()) == made
    assert (made.num_proposals, made.first_row) == (4, 1)
    with_anchor = dspark_network().geometry
    assert (with_anchor.block_size, with_anchor.num_proposals, with_anchor.first_row) == (4, 4, 0)
    wrongs: tuple[dict[str, object], ...] = ({"head": "gru"}, {"head_rank": 0}, {"layer_ids": [2, 1]})
    for wrong in wrongs:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DSparkGeometry.from_dict({**made.to_dict(), **wrong})


@pytest.mark.parametrize("anchor", [True, False])
def test_labels_of_both_layouts(anchor: bool) -> None:
    """Four labels right behind the anchor either way; the rows that predict them differ by one."""
    net, doc = dspark_network(anchor=anchor), document(1, 12)
    blocks = dspark_blocks(net, [doc], [[8, 9]])
    assert blocks.positions_NB.tolist() == [list(range(a, a + (4 if anchor else 5))) for a in (8, 9)]
    assert blocks.labels_NM.tolist() == [[*doc.ids[9:12].tolist(), 0], [*doc.ids[10:12].tolist(), 0, 0]]
    assert blocks.valid_NM.tolist() == [[True, True, True, False], [True, True, False, False]]
    doc.supervised[10] = False
    assert dspark_blocks(net, [doc], [[8]]).valid_NM.tolist() == [[True, False, False, False]]
