"""The serving engine's own selector and convolution on the CPU, over our tensors: the same scores and the same path."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specflow.drafters.dflash2.selector import predecessors
from tests.drafters.dflash2_helpers import network2, proposer2
from tests.drafters.helpers import document

torch.set_num_threads(1)
ROUNDS = 5
PROGRAM = """
import os, sys, torch
os.environ["TORCH_COMPILE_DISABLE"] = "1"
torch.compile = lambda *a, **k: (lambda f: f)
from safetensors.torch import load_file, save_file
from sglang.srt.models.dflash import CandidateSelector, DFlashGroupedConv
t = load_file(sys.argv[1])
vocab, rank = t["predecessor_codebook"].shape
selector = CandidateSelector(
    hidden_size=t["hidden"].shape[-1], vocab_size=vocab, state_rank=rank, top_k=t["ids"].shape[-1]
)
selector.predecessor_codebook.data.copy_(t["predecessor_codebook"])
selector.successor_codebook.data.copy_(t["successor_codebook"])
selector.hidden_projection.weight.data.copy_(t["hidden_projection.weight"])
with torch.no_grad():
    scores = selector.build_lattice(
        candidate_ids=t["ids"], unary_logits=t["unary"], hidden_states=t["hidden"], anchor_token_ids=t["anchors"]
    )
    count = len(scores)
    walks = {}
    for name, greedy in (("greedy", True), ("drawn", False)):
        walks[name], walks[name + "_q"] = selector.sample_path(
            candidate_ids=t["ids"], scores=scores, uniforms=t["uniforms"], temperatures=t["temperatures"],
            greedy_mask=torch.full((count,), greedy),
        )
    taps, group = 2, 8
    conv = DFlashGroupedConv(t["x"].shape[-1], 5, taps, group)
    conv.base_kernel.data.copy_(t["base_kernel"])
    conv.kernel_projection.weight.data.copy_(t["kernel_projection.weight"])
    prepared, coefficients = conv.prepare(t["x"])
    finished = conv.finish(t["y"], coefficients)
save_file({"scores": scores, "prepared": prepared, "finished": finished.contiguous(),
           **{k: v.contiguous() for k, v in walks.items()}}, sys.argv[2])
"""


@pytest.fixture(scope="module")
def found(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Ours and, under the names of the program above, the engine's."""
    root = tmp_path_factory.mktemp("selector")
    net, generator = network2(conv_group_size=8).eval(), torch.Generator().manual_seed(2)
    selector, convolution = net.selector, net.convolved_layers[0].attention_conv
    assert selector is not None
    ids, lattices, hidden, unary, anchors, paths = [], [], [], [], [], []
    for anchor_at in range(9, 9 + ROUNDS):
        doc = document(anchor_at)
        made, anchor = proposer2(net, doc, anchor_at), int(doc.ids[anchor_at])
        candidates, lattice = made.lattice(anchor)
        assert torch.equal(predecessors(anchor, candidates)[1:], candidates[:-1])
        rows = made.hidden(anchor)
        ids.append(candidates)
        lattices.append(lattice)
        hidden.append(rows)
        unary.append(made.logits(anchor).gather(1, candidates))
        anchors.append(anchor)
        paths.append(made.propose(anchor))
    x, y = torch.randn(3, 5, 32, generator=generator), torch.randn(3, 5, 32, generator=generator)
    with torch.no_grad():
        prepared, delta = convolution.prepare(x)
        finished = convolution.finish(y, delta)
    given = {
        "ids": torch.stack(ids), "unary": torch.stack(unary), "hidden": torch.stack(hidden),
        "anchors": torch.tensor(anchors), "uniforms": torch.rand(ROUNDS, 4, generator=generator),
        "temperatures": torch.full((ROUNDS,), 1.3), "x": x.flatten(0, 1), "y": y.flatten(0, 1),
        "base_kernel": convolution.base_kernel, "kernel_projection.weight": convolution.kernel_projection.weight,
        **dict(selector.named_parameters()),
    }  # fmt: skip
    save_file({n: v.detach().contiguous() for n, v in given.items()}, root / "given.safetensors")
    (root / "program.py").write_text(PROGRAM)
    command = [str(sglang_python), "program.py", "given.safetensors", "found.safetensors"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ours = {
        "lattice": torch.stack(lattices), "paths": torch.stack(paths), "our_prepared": prepared.flatten(0, 1),
        "our_finished": finished.flatten(0, 1), "given_ids": given["ids"], "uniforms": given["uniforms"],
    }  # fmt: skip
    return {**load_file(root / "found.safetensors"), **ours}


def test_scores_are_the_engine_s(found: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found["lattice"], found["scores"], atol=1e-4, rtol=1e-4)


def test_the_greedy_path_is_the_engine_s(found: dict[str, torch.Tensor]) -> None:
    assert found["paths"].tolist() == found["greedy"].tolist()
    assert json.dumps(found["greedy_q"].sum(dim=-1).tolist()) == json.dumps([[1.0] * 4] * ROUNDS)


def test_a_drawn_path_and_its_q_are_the_engine_s(found: dict[str, torch.Tensor]) -> None:
    """By inverse of the running sum over the candidates, after the token drawn before."""
    for r in range(ROUNDS):
        at = 0
        for i in range(4):
            q = (found["lattice"][r, i, at] / 1.3).softmax(dim=0)
            torch.testing.assert_close(found["drawn_q"][r, i], q, atol=1e-4, rtol=1e-4)
            at = min(int((found["uniforms"][r, i] >= q.cumsum(dim=0)).sum()), 3)
            assert int(found["given_ids"][r, i, at]) == int(found["drawn"][r, i])


def test_convolutions_are_the_engine_s(found: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found["our_prepared"], found["prepared"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["our_finished"], found["finished"], atol=1e-5, rtol=1e-5)
