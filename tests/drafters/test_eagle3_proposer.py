"""METHODS 9.2: the incremental proposer equals the training forward for every way the prefix was committed; trees."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.eagle3.forward import hidden_of
from specflow.drafters.eagle3.network import Eagle3Network
from specflow.drafters.eagle3.proposer import Eagle3Proposer
from specflow.drafters.rollouts import starts_before
from specflow.drafters.training import Source
from tests.drafters import eagle3_reference as reference
from tests.drafters.eagle3_helpers import DRAFT_IDS, ends, network, proposer, source
from tests.drafters.helpers import VOCAB, tables

torch.set_num_threads(1)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "own head": {"own_head": True},
    "two layers, norms": {"num_layers": 2, "fc_norm": True, "norm_output": True, "own_head": True},
}


def committed(given: Source, start: int, stop: int) -> Committed:
    return Committed.of_text(given, start, stop)


def ready(net: Eagle3Network, given: Source, anchor: int, precision: str = "fp32") -> Eagle3Proposer:
    made = proposer(net, precision)
    made.reset(anchor + 8)
    made.extend(committed(given, 0, anchor))
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_every_cut_of_the_prefix_into_rounds(shape: str) -> None:
    net, given, anchor = network(**SHAPES[shape]), source(3, 20), 9
    ids, made = given.token_ids_T, proposer(net)
    with torch.no_grad():
        expected = hidden_of(net, starts_before(given, torch.tensor([anchor - 1]), depths=4), ends().embed)[:, 0]
    for size in (0, 1, 2, 3, 8):
        for cuts in itertools.islice(itertools.combinations(range(1, anchor), size), 30):
            made.reset(anchor)
            for start, stop in itertools.pairwise((0, *cuts, anchor)):
                if start:  # what was drafted between rounds must leave no trace
                    made.propose(int(ids[start]))
                    made.expand(torch.tensor([1, 2, 3]), torch.tensor([0, 0, 2]))
                made.extend(committed(given, start, stop))
            found = made.hidden(int(ids[anchor]), ids[anchor + 1 : anchor + 5])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def logits_of(net: Eagle3Network, hidden: Tensor) -> Tensor:
    """``[..., V]`` float64, minus infinity outside the draft vocabulary."""
    _, head = tables()
    if not net.has_own_head:
        return hidden @ head.double().T
    out = torch.full((*hidden.shape[:-1], VOCAB), float("-inf"), dtype=torch.float64)
    out[..., DRAFT_IDS] = hidden @ net.lm_head.weight.double().T
    return out


def branch(net: Eagle3Network, given: Source, anchor: int, tokens: list[int]) -> Tensor:
    """``[V]`` log q after the anchor and ``tokens``, by the float64 reference."""
    text = reference.Text(given.token_ids_T, given.supervised_T, given.features_TKH)
    embedding, _ = tables()
    hidden = reference.chain(reference.weights_of(net), net.geometry, embedding, text, anchor - 1, [*tokens, 0])
    return logits_of(net, hidden[-1]).log_softmax(-1).detach()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chain_proposes_what_the_reference_does(shape: str) -> None:
    net, given, anchor = network(**SHAPES[shape]), source(4), 14
    made, tokens = ready(net, given, anchor), list[int]()
    for _ in range(4):
        tokens.append(int(branch(net, given, anchor, tokens).argmax()))
    found = made.propose(int(given.token_ids_T[anchor]))
    assert found.tolist() == tokens
    assert found.dtype == torch.int64
    assert (made.num_proposals, made.layer_ids, made.length) == (4, (0, 2, 3), 14)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_node_of_a_tree_equals_the_chain_of_its_ancestors(shape: str) -> None:
    net, given, anchor = network(**SHAPES[shape]), source(5), 11
    made, paths = ready(net, given, anchor), {0: list[int]()}
    levels = [([3, 8, 20], [0, 0, 0]), ([5, 3], [2, 1]), ([9, 9, 4, 0], [4, 5, 2, 4]), ([7], [9])]
    found = {0: made.begin_tree(int(given.token_ids_T[anchor]))}
    for tokens, parents in levels:
        first = len(paths)
        for offset, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            paths[first + offset] = [*paths[parent], token]
        for offset, row in enumerate(made.expand(torch.tensor(tokens), torch.tensor(parents))):
            found[first + offset] = row
    assert len(found) == 11
    for node, path in paths.items():
        assert found[node].dtype == torch.float32
        torch.testing.assert_close(found[node].double(), branch(net, given, anchor, path), atol=2e-5, rtol=2e-5)


def test_a_chain_is_a_tree_of_one_branch() -> None:
    net, given, anchor = network(own_head=True), source(6), 17
    made, token = ready(net, given, anchor), int(given.token_ids_T[anchor])
    rows = [made.begin_tree(token)]
    for index in range(3):
        rows.append(made.expand(rows[-1].argmax().unsqueeze(0), torch.tensor([index]))[0])
    assert made.propose(token).tolist() == [int(row.argmax()) for row in rows]


def test_more_nodes_than_there_was_room_for() -> None:
    net, given, anchor = network(), source(7), 6
    made = proposer(net)
    made.reset(anchor)
    made.extend(committed(given, 0, anchor))
    made.begin_tree(int(given.token_ids_T[anchor]))
    tokens = torch.arange(90) % VOCAB
    found = made.expand(tokens, torch.zeros(90, dtype=torch.int64))
    deep = made.expand(torch.tensor([5]), torch.tensor([90]))
    for node in (0, 40, 89):
        torch.testing.assert_close(
            found[node].double(), branch(net, given, anchor, [node]), atol=2e-5, rtol=2e-5, msg=str(node)
        )
    torch.testing.assert_close(deep[0].double(), branch(net, given, anchor, [89, 5]), atol=2e-5, rtol=2e-5)


def test_drawn_proposals_come_with_their_own_distribution() -> None:
    net, given, anchor = network(own_head=True), source(8), 10
    made, wanted = ready(net, given, anchor), [DRAFT_IDS[4], DRAFT_IDS[9], DRAFT_IDS[4], DRAFT_IDS[0]]
    seen: list[Tensor] = []

    def draw(logits_V: Tensor) -> tuple[int, Tensor]:
        seen.append(logits_V)
        return wanted[len(seen) - 1], logits_V.softmax(0)

    found = made.sample(int(given.token_ids_T[anchor]), draw)
    assert found.tokens_m.tolist() == wanted
    assert found.q_mV is not None
    for index, logits_V in enumerate(seen):
        expected = branch(net, given, anchor, wanted[:index])
        assert torch.equal(logits_V.isfinite().nonzero().squeeze(1), torch.tensor(DRAFT_IDS))
        torch.testing.assert_close(logits_V.log_softmax(0).double(), expected, atol=2e-5, rtol=2e-5)
        assert torch.equal(found.q_mV[index], logits_V.softmax(0))


def test_ties_go_to_the_lowest_id() -> None:
    net, given = network(own_head=True), source(9)
    with torch.no_grad():
        net.lm_head.weight.zero_()
    assert ready(net, given, 5).propose(int(given.token_ids_T[5])).tolist() == [DRAFT_IDS[0]] * 4


@pytest.mark.parametrize(("precision", "tolerance"), [("packed", 0.03), ("bf16", 0.25)])
def test_narrow_weights_stay_close(precision: str, tolerance: float) -> None:
    net, given, anchor = network(own_head=True, num_layers=2), source(6), 17
    text = given.token_ids_T[anchor + 1 :]
    wide, narrow = (ready(net, given, anchor, p) for p in ("fp32", precision))
    rows = [p.score(p.hidden(int(given.token_ids_T[anchor]), text)) for p in (wide, narrow)]
    assert (rows[0] - rows[1]).abs().max() < tolerance * rows[0].std()


def test_forks_share_weights_and_nothing_else() -> None:
    net, one, other = network(), source(7), source(8)
    made = ready(net, one, 9)
    token = int(one.token_ids_T[9])
    before = made.propose(token)
    forked = made.fork()
    forked.reset(20)
    forked.extend(committed(other, 0, 13))
    forked.propose(int(other.token_ids_T[13]))
    assert made.propose(token).tolist() == before.tolist()
    made.reset(20)
    made.extend(committed(other, 0, 13))
    assert (
        made.propose(int(other.token_ids_T[13])).tolist()
        == ready(net, other, 13).propose(int(other.token_ids_T[13])).tolist()
    )


def test_what_does_not_fit_is_refused() -> None:
    made, given = proposer(network()), source(1)
    made.reset(5)
    with pytest.raises(ValueError, match="at most 5 more rows"):
        made.extend(committed(given, 0, 6))
    with pytest.raises(ValueError, match="expected 3 features"):
        made.extend(Committed(features_TKH=given.features_TKH[:2, :2], next_ids_T=torch.zeros(2, dtype=torch.int64)))
    made.extend(committed(given, 0, 5))
    with pytest.raises(ValueError, match="the last committed row names"):
        made.propose((int(given.token_ids_T[5]) + 1) % VOCAB)
    with pytest.raises(ValueError, match="at least two layers"):
        network(layer_ids=[1])
