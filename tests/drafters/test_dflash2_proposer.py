"""DFlash 2 at decoding: the training forward for every cut (METHODS 9.2), lattice and walk against plain loops."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.drafters.dflash2_helpers import committed_rows, network2, proposer2, reference_lattice
from tests.drafters.helpers import VOCAB, blocks_of, document, tables, training_logits

torch.set_num_threads(1)


@pytest.mark.parametrize("changes", [{}, {"conv_kernel_size": 3, "sliding_window": 6, "sliding_layers": [0, 1]}])
def test_every_cut_of_the_prefix_into_rounds(changes: dict[str, object]) -> None:
    doc, anchor, (embedding, head) = document(3, 20), 10, tables()
    net = network2(**changes)
    expected = training_logits(net, blocks_of([doc], [[anchor]]), embedding, head)[0]
    made = proposer2(net)
    for size in (0, 1, 2, 9):
        for cuts in itertools.islice(itertools.combinations(range(1, anchor), size), 10):
            made.reset(anchor)
            for start, stop in itertools.pairwise((0, *cuts, anchor)):
                if start:
                    made.propose(int(doc.ids[start]))  # a noise block between rounds must leave no trace
                made.extend(committed_rows(doc, start, stop))
            torch.testing.assert_close(made.logits(int(doc.ids[anchor])), expected, atol=1e-5, rtol=1e-5)


SHAPES = {
    "plain": {},
    "capped": {"output_multiplier": 1.5, "final_logit_softcapping": 4.0},
    "wide": {"selector_top_k": 64},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_lattice_equals_the_formula_and_the_walk_is_causal(shape: str) -> None:
    doc, changed = document(4), 0
    for seed in range(4):
        net = network2(seed, **SHAPES[shape])
        made = proposer2(net, doc, 12)
        anchor = int(doc.ids[12])
        candidates, score = reference_lattice(net, made.hidden(anchor), anchor)
        ids_mK, lattice_mKK = made.lattice(anchor)
        assert ids_mK.tolist() == candidates
        before = [[anchor] * len(candidates[0]), *candidates[:-1]]
        for i, row in enumerate(before):
            for p, previous in enumerate(row):
                expected = [score(i, previous, token) for token in candidates[i]]
                torch.testing.assert_close(lattice_mKK[i, p], torch.tensor(expected), atol=2e-4, rtol=2e-4)
        previous, path = anchor, []
        for i in range(4):
            previous = max(candidates[i], key=lambda token, i=i, previous=previous: (score(i, previous, token), -token))
            path.append(previous)
        assert made.propose(anchor).tolist() == path
        changed += path != made.logits(anchor).argmax(dim=-1).tolist()
    assert changed  # by the selector


class FirstMoments:
    """Draws by its own generator and keeps the rows it was given."""

    def __init__(self, temperature: float, seed: int) -> None:
        self.rows: list[Tensor] = []
        self._temperature, self._generator = temperature, torch.Generator().manual_seed(seed)

    def __call__(self, logits_V: Tensor) -> tuple[int, Tensor]:
        self.rows.append(logits_V.clone())
        q_V = (logits_V.double() / self._temperature).softmax(dim=0)
        return int(torch.multinomial(q_V, 1, generator=self._generator)), q_V


def test_a_draw_sees_the_row_after_the_token_drawn_before_it_and_nothing_else() -> None:
    doc, net = document(4), network2()
    made, anchor = proposer2(net, doc, 12), int(doc.ids[12])
    candidates, score = reference_lattice(net, made.hidden(anchor), anchor)
    paths = set()
    for seed in range(12):
        draw = FirstMoments(3.0, seed)
        proposal = made.sample(anchor, draw)
        assert proposal.q_mV is not None
        tokens = proposal.tokens_m.tolist()
        paths.add(tuple(tokens))
        for i, previous in enumerate([anchor, *tokens[:-1]]):
            q = proposal.q_mV[i]
            inside = torch.zeros(VOCAB, dtype=torch.bool)
            inside[candidates[i]] = True
            assert float(q.sum()) == pytest.approx(1.0, abs=1e-12)
            assert float(q[~inside].abs().max()) == 0.0
            assert tokens[i] in candidates[i]
            expected = torch.tensor([score(i, previous, token) for token in candidates[i]])
            torch.testing.assert_close(draw.rows[i][candidates[i]], expected, atol=2e-4, rtol=2e-4)
            assert draw.rows[i][~inside].isinf().all()
    assert len(paths) > 3


def test_the_next_round_begins_clean() -> None:
    doc, net = document(4), network2()
    made, other = proposer2(net, doc, 12), proposer2(net, doc, 12)
    first, second = int(doc.ids[12]), int(doc.ids[13])
    made.sample(first, FirstMoments(2.0, 0))
    for proposer in (made, other):
        proposer.extend(committed_rows(doc, 12, 13))
    used, unused = (p.sample(second, FirstMoments(2.0, 1)) for p in (made, other))
    assert torch.equal(used.tokens_m, unused.tokens_m)
    assert used.q_mV is not None
    assert unused.q_mV is not None
    assert torch.equal(used.q_mV, unused.q_mV)
    assert (used.q_mV.count_nonzero(dim=1) <= 4).all()


def test_without_a_selector_rows_are_drawn_for_themselves() -> None:
    doc, net = document(4), network2(selector_rank=0, selector_top_k=0, final_logit_softcapping=3.0)
    made = proposer2(net, doc, 12)
    assert made.propose(5).tolist() == made.logits(5).argmax(dim=-1).tolist()
    draw = FirstMoments(1.0, 0)
    made.sample(5, draw)
    assert torch.equal(torch.stack(draw.rows), made.logits(5))
    assert float(made.logits(5).abs().max()) < 3.0


@pytest.mark.parametrize(("precision", "tolerance"), [("packed", 0.05), ("bf16", 0.3)])
def test_narrow_weights_stay_close(precision: str, tolerance: float) -> None:
    doc = document(6)
    wide, narrow = (proposer2(network2(), doc, 17, precision=p) for p in ("fp32", precision))
    assert (wide.logits(3) - narrow.logits(3)).abs().max() < tolerance * wide.logits(3).std()
