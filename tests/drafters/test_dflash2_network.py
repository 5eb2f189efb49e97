"""The network of DFlash 2 against plain loops, its names, and that a fresh one is its DFlash to the bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from specflow_kernels.grouped_dynamic_conv import grouped_dynamic_conv
from torch import Tensor

from specflow.drafters.dflash.network import Context, DFlashNetwork
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.drafters.dflash2.geometry import DFlash2Geometry
from specflow.drafters.dflash2.method import become_fresh
from specflow.drafters.dflash2.network import DFlash2Network
from specflow.drafters.dflash2.proposer import DFlash2Proposer
from specflow.drafters.rope import cos_sin
from tests.drafters.dflash2_helpers import committed_rows, geometry2, network2, proposer2
from tests.drafters.helpers import blocks_of, document, network, tables, training_logits
from tests.drafters.test_dflash_network import reference_logits

torch.set_num_threads(1)


def slow_convolution(x: Tensor, base: Tensor, delta: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for n, t, tap in itertools.product(range(x.shape[0]), range(x.shape[1]), range(base.shape[0])):
        if t >= tap:
            size = x.shape[2] // delta.shape[3]
            coefficient = torch.stack([base[tap, c] + delta[n, t, tap, c // size] for c in range(x.shape[2])])
            out[n, t] = out[n, t] + coefficient * x[n, t - tap]
    return out


@pytest.mark.parametrize("taps", [1, 2, 3, 6])
def test_convolution_equals_loops_in_value_and_gradient(taps: int) -> None:
    g = torch.Generator().manual_seed(taps)
    shapes = ((2, 4, 6), (taps, 6), (2, 4, taps, 3))
    ours, loops = ([torch.randn(s, generator=g).double().requires_grad_() for s in shapes] for _ in range(2))
    for a, b in zip(ours, loops, strict=True):
        b.data.copy_(a.data)
    weights = torch.randn(2, 4, 6, generator=g).double()
    found, expected = grouped_dynamic_conv(*ours), slow_convolution(*loops)
    torch.testing.assert_close(found, expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for a, b in zip(ours, loops, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad if b.grad is not None else torch.zeros_like(a))


VARIANTS: dict[str, dict[str, Any]] = {
    "two taps": {},
    "three taps": {"conv_kernel_size": 3},
    "more taps than rows": {"conv_kernel_size": 7, "conv_group_size": 32},
    "groups of one channel": {"conv_group_size": 1},
    "window": {"sliding_window": 6, "sliding_layers": [0]},
    "no convolution": {"conv_kernel_size": 0, "conv_group_size": 0},
    "one layer": {"num_layers": 1},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_training_forward_equals_the_contract_pseudo_code(name: str) -> None:
    net, docs, (e, head) = network2(**VARIANTS[name]), [document(1, 25), document(2, 34)], tables()
    anchors = [[8, 22], [9]]
    blocks = blocks_of(docs, anchors)
    logits = training_logits(net, blocks, e, head, first_row=0)
    places = [(doc, anchor) for doc, some in zip(docs, anchors, strict=True) for anchor in some]
    for row, (doc, anchor) in zip(logits, places, strict=True):
        expected = reference_logits(net, doc.ids, doc.features, anchor, e, head)
        torch.testing.assert_close(row.double(), expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(training_logits(net, blocks, e, head), logits[:, 1:], atol=1e-5, rtol=1e-5)


def test_names_and_shapes_are_the_serving_engines() -> None:
    shapes = {name: tuple(value.shape) for name, value in network2(num_layers=1).state_dict().items()}
    plain = {name: tuple(value.shape) for name, value in network(num_layers=1).state_dict().items()}
    assert {name: shape for name, shape in shapes.items() if name not in plain} == {
        "layers.0.attention_conv.base_kernel": (2, 2, 32),
        "layers.0.attention_conv.kernel_projection.weight": (2 * 2 * 4, 32),
        "layers.0.mlp_conv.base_kernel": (2, 2, 32),
        "layers.0.mlp_conv.kernel_projection.weight": (2 * 2 * 4, 32),
        "candidate_selector.predecessor_codebook": (97, 6),
        "candidate_selector.successor_codebook": (97, 6),
        "candidate_selector.hidden_projection.weight": (6, 32),
    }
    assert plain.items() <= shapes.items()
    off = {"conv_kernel_size": 0, "conv_group_size": 0, "selector_rank": 0, "selector_top_k": 0}
    assert {name: tuple(v.shape) for name, v in network2(num_layers=1, **off).state_dict().items()} == plain


def test_geometry_round_trip_and_refusals() -> None:
    made = geometry2(final_logit_softcapping=30.0, output_multiplier=0.5)
    assert DFlash2Geometry.from_dict(made.to_dict()) == made
    for wrong in (
        {"conv_kernel_size": 0}, {"conv_group_size": 0}, {"conv_group_size": 5}, {"selector_rank": 0},
        {"selector_top_k": 0}, {"selector_top_k": 3}, {"selector_top_k": 128}, {"output_multiplier": 0.0},
        {"final_logit_softcapping": -1.0}, {"block_size": 1},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=str(next(iter(wrong)))):
            geometry2(**wrong)


# A fresh one is its DFlash.


def fresh_pair(**changes: Any) -> tuple[DFlashNetwork, DFlash2Network]:
    plain, made = network(4, **changes), network2(5, **changes)
    made.load_state_dict(plain.state_dict(), strict=False)
    become_fresh(made, seed=0, std=0.3)
    return plain, made


def test_a_fresh_layer_is_dflash_s_to_the_bit_in_training() -> None:
    """Every row computed in both, so that the products have equal shapes and round equally."""
    plain, made = fresh_pair()
    blocks, x = blocks_of([document(1, 40), document(2, 34)], [[8, 13, 22], [9]]), torch.randn(4, 5, 32)
    keys, values = plain.project_context(blocks.features_SKH, blocks.context_positions_S)
    context = Context(keys=keys, values=values, spans=blocks.spans, visible_N=blocks.visible_N)
    cos, sin = cos_sin(blocks.positions_NB, plain.frequencies, plain.rope_factor)
    for before, after in zip(plain.layers, made.layers, strict=True):
        expected, found = (
            layer(x, cos, sin, context=context, first_row=0, equal_masks=False) for layer in (before, after)
        )
        assert torch.equal(found, expected)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_fresh_one_has_its_dflash_s_logits_in_training(layers: int) -> None:
    """Up to rounding, because DFlash multiplies fewer rows at once."""
    plain, made = fresh_pair(num_layers=layers)
    blocks, (e, head) = blocks_of([document(1, 40), document(2, 34)], [[8, 13, 22, 30], [9, 20]]), tables()
    for first_row in (0, 1):
        expected = training_logits(plain, blocks, e, head, first_row=first_row)
        found = training_logits(made, blocks, e, head, first_row=first_row)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
        assert torch.equal(found.argmax(dim=-1), expected.argmax(dim=-1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "packed"])
def test_a_fresh_one_has_its_dflash_s_logits_and_proposals_to_the_bit_in_decoding(precision: str) -> None:
    plain, made = fresh_pair()
    doc, (embedding, head) = document(3, 30), tables()
    before = DFlashProposer(plain, embed=lambda i: embedding[i], head=lambda h: h.float() @ head.T, precision=precision)
    after = proposer2(made, precision=precision)
    before.reset(60)
    for start, stop in ((0, 9), (9, 10), (10, 14)):
        for proposer in (before, after):
            proposer.extend(committed_rows(doc, start, stop))
        anchor = int(doc.ids[stop])
        assert torch.equal(before.logits(anchor), after.logits(anchor))
        assert before.propose(anchor).tolist() == after.propose(anchor).tolist()


def test_ties_go_to_the_lowest_id_as_in_dflash() -> None:
    _, made = fresh_pair()
    embedding, head = tables()
    tied = DFlash2Proposer(made, embed=lambda i: embedding[i], head=lambda h: h @ torch.zeros_like(head).T)
    tied.reset(9)
    tied.extend(committed_rows(document(1), 0, 5))
    assert tied.propose(1).tolist() == [0, 0, 0, 0]


def test_what_is_planted_is_seen() -> None:
    """One value of a convolution or codebook changes the round: the equality above is no accident."""
    plain, made = fresh_pair()
    doc = document(3, 30)
    before = proposer2(made, doc, 12).logits(7)
    with torch.no_grad():
        made.convolved_layers[1].mlp_conv.base_kernel[1, 1] = 0.1
    assert not torch.equal(proposer2(made, doc, 12).logits(7), before)
    _, other = fresh_pair()
    with torch.no_grad():
        assert other.selector is not None
        other.selector.successor_codebook.normal_(generator=torch.Generator().manual_seed(3)).mul_(30)
    chosen = [proposer2(net, doc, 12).propose(7).tolist() for net in (fresh_pair()[1], other)]
    assert chosen[0] != chosen[1]
    assert plain.geometry.num_layers == 2
