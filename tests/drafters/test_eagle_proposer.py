"""METHODS 9.2: EAGLE's proposer equals its training forward for every way the prefix was committed; trees, draws."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.drafters.base import Committed
from specflow.drafters.eagle import method as eagle
from specflow.drafters.eagle.network import EagleNetwork
from specflow.drafters.eagle.proposer import EagleProposer
from specflow.drafters.training import Source
from tests.drafters import eagle_reference as reference
from tests.drafters.eagle3_helpers import DRAFT_IDS, ends, source
from tests.drafters.eagle3_reference import Text, weights_of
from tests.drafters.eagle_helpers import network, proposer
from tests.drafters.helpers import VOCAB, tables

torch.set_num_threads(1)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "limited vocabulary": {"limited": True},
    "two layers": {"num_layers": 2},
}


def ready(net: EagleNetwork, given: Source, anchor: int, precision: str = "fp32") -> EagleProposer:
    made = proposer(net, precision)
    made.reset(anchor + 8)
    made.extend(Committed.of_text(given, 0, anchor))
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_every_cut_of_the_prefix_into_rounds(shape: str) -> None:
    anchor = 9
    net, given = network(**SHAPES[shape]), source(3, 20, anchors=torch.tensor([anchor]))
    ids, made = given.token_ids_T, proposer(net)
    with torch.no_grad():
        expected = eagle.training_hidden(net, ends().embed, given)[0]
    for size in (0, 1, 2, 3, 8):
        for cuts in itertools.islice(itertools.combinations(range(1, anchor), size), 30):
            made.reset(anchor)
            for start, stop in itertools.pairwise((0, *cuts, anchor)):
                if start:  # what was drafted between rounds must leave no trace
                    made.propose(int(ids[start]))
                    made.expand(torch.tensor([1, 2, 3]), torch.tensor([0, 0, 2]))
                made.extend(Committed.of_text(given, start, stop))
            found = made.hidden(int(ids[anchor]), ids[anchor + 1 : anchor + 5])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def branch(net: EagleNetwork, given: Source, anchor: int, tokens: list[int]) -> Tensor:
    """``[V]`` log q after the anchor and ``tokens``, by the float64 reference."""
    text = Text(given.token_ids_T, given.supervised_T, given.features_TKH, given.last_hidden_TH)
    embedding, head = tables()
    hidden = reference.chain(weights_of(net), net.geometry, embedding, text, anchor - 1, [*tokens, 0])
    logits = hidden[-1].detach() @ head.double().T
    if net.draft_ids_D is None:
        return logits.log_softmax(-1)
    out = torch.full((VOCAB,), float("-inf"), dtype=torch.float64)
    out[DRAFT_IDS] = logits[DRAFT_IDS].log_softmax(-1)
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_a_chain_proposes_what_the_reference_does(shape: str) -> None:
    net, given, anchor = network(**SHAPES[shape]), source(4), 14
    made, tokens = ready(net, given, anchor), list[int]()
    for _ in range(4):
        tokens.append(int(branch(net, given, anchor, tokens).argmax()))
    found = made.propose(int(given.token_ids_T[anchor]))
    assert found.tolist() == tokens
    assert found.dtype == torch.int64
    assert (made.num_proposals, made.layer_ids, made.length) == (4, (), 14)


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
        torch.testing.assert_close(found[node].double(), branch(net, given, anchor, path), atol=2e-5, rtol=2e-5)


def test_drawn_proposals_come_with_their_own_distribution() -> None:
    net, given, anchor = network(limited=True), source(8), 10
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
        torch.testing.assert_close(logits_V.log_softmax(0).double(), expected, atol=2e-5, rtol=2e-5)
        assert torch.equal(found.q_mV[index], logits_V.softmax(0))


@pytest.mark.parametrize(("precision", "tolerance"), [("packed", 0.03), ("bf16", 0.25)])
def test_narrow_weights_stay_close(precision: str, tolerance: float) -> None:
    net, given, anchor = network(num_layers=2), source(6), 17
    text = given.token_ids_T[anchor + 1 :]
    wide, narrow = (ready(net, given, anchor, p) for p in ("fp32", precision))
    rows = [p.score(p.hidden(int(given.token_ids_T[anchor]), text)) for p in (wide, narrow)]
    assert (rows[0] - rows[1]).abs().max() < tolerance * rows[0].std()


def test_forks_share_weights_and_nothing_else() -> None:
    net, one, other = network(), source(7), source(8)
    made = ready(net, one, 9)
    before = made.propose(int(one.token_ids_T[9]))
    forked = made.fork()
    forked.reset(20)
    forked.extend(Committed.of_text(other, 0, 13))
    assert forked.propose(int(other.token_ids_T[13])).tolist() != before.tolist()
    assert made.propose(int(one.token_ids_T[9])).tolist() == before.tolist()


def test_what_does_not_fit_is_refused() -> None:
    made, given = proposer(network()), source(1)
    made.reset(5)
    with pytest.raises(ValueError, match="at most 5 more rows"):
        made.extend(Committed.of_text(given, 0, 6))
    with pytest.raises(ValueError, match="last hidden states"):
        made.extend(Committed(features_TKH=given.features_TKH[:2], next_ids_T=given.token_ids_T[1:3]))
    made.extend(Committed.of_text(given, 0, 5))
    with pytest.raises(ValueError, match="the last committed row names"):
        made.propose((int(given.token_ids_T[5]) + 1) % VOCAB)
