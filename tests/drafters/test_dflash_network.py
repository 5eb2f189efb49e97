"""The network against a plain float64 reference, and the names and shapes the serving engine loads."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from specflow.drafters.dflash.geometry import DFlashGeometry
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.rope import inverse_frequencies
from specflow.drafters.sizes import rope_parameters_of
from tests.drafters.helpers import blocks_of, document, geometry, network, tables, training_logits

torch.set_num_threads(1)


def reference_logits(net: DFlashNetwork, ids: Tensor, features: Tensor, anchor: int, e: Tensor, head: Tensor) -> Tensor:
    """One block by the contract's pseudo-code, loops and float64; convolutions and windows where it has them."""
    g = net.geometry
    w = {k: v.double() for k, v in net.state_dict().items()}

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + g.rms_norm_eps).sqrt() * weight

    def rope(x: Tensor, position: int) -> Tensor:  # [heads, d]
        out, half = x.clone(), g.head_dim // 2
        for i in range(half):
            angle = torch.tensor(position * 10000.0 ** (-2 * i / g.head_dim), dtype=torch.float64)
            a, b = x[:, i], x[:, i + half]
            out[:, i], out[:, i + half] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return out

    def convolved(x: Tensor, name: str, side: int, read: Tensor) -> Tensor:
        """``read``: the rows that the kernel is projected from."""
        if f"{name}.base_kernel" not in w:
            return x
        base, projection = w[f"{name}.base_kernel"], w[f"{name}.kernel_projection.weight"]
        taps, groups = base.shape[1], projection.shape[0] // (2 * base.shape[1])
        out = torch.zeros_like(x)
        for t, tap in itertools.product(range(len(x)), range(taps)):
            if t >= tap:
                for channel in range(x.shape[1]):
                    row = side * taps * groups + tap * groups + channel // (x.shape[1] // groups)
                    out[t, channel] += (base[side, tap, channel] + projection[row] @ read[t]) * x[t - tap, channel]
        return out

    def sees(layer: int, row: int, position: int) -> bool:
        """Whether a row of the block sees the key at a position."""
        own, window = anchor + row, g.sliding_window if layer in g.sliding_layers else None
        causal = layer in g.sliding_layers if g.causal_block is None else g.causal_block
        return not (causal and position > own) and not (window is not None and position <= own - window)

    context = rms(features[:anchor].double().flatten(1) @ w["fc.weight"].T, w["hidden_norm.weight"])
    rows = [int(ids[anchor])] + [g.mask_token_id] * (g.block_size - 1)
    x = e[rows].double()
    for i in range(g.num_layers):
        p = f"layers.{i}."
        read = rms(x, w[p + "input_layernorm.weight"])
        a = convolved(read, p + "attention_conv", 0, read)

        def heads(y: Tensor, name: str, norm: str | None, first: int, p: str = p) -> list[Tensor]:
            y = (y @ w[p + f"self_attn.{name}.weight"].T).unflatten(-1, (-1, g.head_dim))
            if norm is None:
                return list(y)
            y = rms(y, w[p + f"self_attn.{norm}.weight"])
            return [rope(row, first + t) for t, row in enumerate(y)]

        q = heads(a, "q_proj", "q_norm", anchor)
        k = heads(context, "k_proj", "k_norm", 0) + heads(a, "k_proj", "k_norm", anchor)
        v = heads(context, "v_proj", None, 0) + heads(a, "v_proj", None, anchor)
        keys, values = torch.stack(k), torch.stack(v)
        out = []
        for t, row in enumerate(q):
            mixed = []
            seen = [sees(i, t, position) for position in range(len(keys))]
            for head_index in range(g.num_heads):
                group = head_index // (g.num_heads // g.num_kv_heads)
                scores = keys[seen, group] @ row[head_index] / g.head_dim**0.5
                mixed.append(scores.softmax(0) @ values[seen, group])
            out.append(torch.cat(mixed))
        x = x + convolved(torch.stack(out) @ w[p + "self_attn.o_proj.weight"].T, p + "attention_conv", 1, read)
        read = rms(x, w[p + "post_attention_layernorm.weight"])
        a = convolved(read, p + "mlp_conv", 0, read)
        gate, up = a @ w[p + "mlp.gate_proj.weight"].T, a @ w[p + "mlp.up_proj.weight"].T
        x = x + convolved((gate * gate.sigmoid() * up) @ w[p + "mlp.down_proj.weight"].T, p + "mlp_conv", 1, read)
    return rms(x, w["norm.weight"]) @ head.double().T


VISIBILITY = {
    "everything": {},
    "causal": {"causal_block": True},
    "window": {"sliding_window": 6, "sliding_layers": [0, 1]},
    "window of one layer": {"sliding_window": 9, "sliding_layers": [1]},
    "window, not causal": {"sliding_window": 5, "sliding_layers": [0], "causal_block": False},
    "window beyond the text": {"sliding_window": 99, "sliding_layers": [0, 1]},
}


@pytest.mark.parametrize("name", VISIBILITY)
def test_training_forward_equals_the_contract_pseudo_code(name: str) -> None:
    net, docs, (e, head) = network(**VISIBILITY[name]), [document(1, 25), document(2, 34)], tables()
    anchors = [[8, 13, 22], [9, 30]]
    logits = training_logits(net, blocks_of(docs, anchors), e, head, first_row=0)
    row = 0
    for doc, some in zip(docs, anchors, strict=True):
        for anchor in some:
            expected = reference_logits(net, doc.ids, doc.features, anchor, e, head)
            torch.testing.assert_close(logits[row].double(), expected, atol=1e-4, rtol=1e-4)
            row += 1


def test_leaving_out_the_anchor_row_changes_nothing_else() -> None:
    net, blocks, (e, head) = network(), blocks_of([document(1)], [[9, 20]]), tables()
    whole = training_logits(net, blocks, e, head, first_row=0)
    torch.testing.assert_close(training_logits(net, blocks, e, head), whole[:, 1:], atol=1e-5, rtol=1e-5)


def test_names_and_shapes_are_the_serving_engines() -> None:
    shapes = {name: tuple(value.shape) for name, value in network(num_layers=1).state_dict().items()}
    assert shapes == {
        "fc.weight": (32, 96),
        "hidden_norm.weight": (32,),
        "norm.weight": (32,),
        "layers.0.input_layernorm.weight": (32,),
        "layers.0.post_attention_layernorm.weight": (32,),
        "layers.0.self_attn.q_proj.weight": (32, 32),
        "layers.0.self_attn.k_proj.weight": (16, 32),
        "layers.0.self_attn.v_proj.weight": (16, 32),
        "layers.0.self_attn.o_proj.weight": (32, 32),
        "layers.0.self_attn.q_norm.weight": (8,),
        "layers.0.self_attn.k_norm.weight": (8,),
        "layers.0.mlp.gate_proj.weight": (48, 32),
        "layers.0.mlp.up_proj.weight": (48, 32),
        "layers.0.mlp.down_proj.weight": (32, 48),
    }


def test_geometry_round_trip_and_refusals() -> None:
    made = geometry()
    assert DFlashGeometry.from_dict(made.to_dict()) == made
    with pytest.raises(ValueError, match="unknown keys"):
        DFlashGeometry.from_dict({**made.to_dict(), "extra": 1})
    for wrong in (
        {"layer_ids": [2, 1]}, {"mask_token_id": 97}, {"num_kv_heads": 3}, {"block_size": 1}, {"sliding_window": 6},
        {"sliding_layers": [0]}, {"sliding_window": 4, "sliding_layers": [0]},
        {"sliding_layers": [2], "sliding_window": 6},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=str(next(iter(wrong)))):
            geometry(**wrong)


def test_rope_parameters_from_both_config_forms() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert rope_parameters_of(old) == {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
    assert rope_parameters_of(new) == {"rope_type": "default", "rope_theta": 1e5}
    frequencies, factor = inverse_frequencies(rope_parameters_of(old), head_dim=8, max_position_embeddings=64)
    expected = torch.tensor([5e5 ** (-2 * i / 8) / 4 for i in range(4)])
    torch.testing.assert_close(frequencies, expected)
    assert factor == 1.0
