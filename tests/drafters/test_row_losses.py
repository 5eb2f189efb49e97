"""The loss menu against plain float64 formulas, in value and gradient; candidates against a full sort."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.drafters import row_losses as module
from specflow.drafters.block_loss import BlockLoss, LossKind, block_loss
from specflow.drafters.candidates import candidate_logits, largest
from specflow.drafters.dpace import Dpace, dpace_weights
from specflow.drafters.row_losses import TERMS, LogitShape, row_losses

torch.set_num_threads(1)
ROWS, HIDDEN, VOCAB = 7, 6, 11


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden, head, teacher = (torch.randn(n, HIDDEN, generator=g).double() for n in (ROWS, VOCAB, ROWS))
    return hidden, head, torch.randint(0, VOCAB, (ROWS,), generator=g), teacher


def reference(name: str, logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    q, p = logits.softmax(dim=1), teacher_logits.softmax(dim=1)
    return {
        "ce": lambda: -q[torch.arange(len(labels)), labels].log(),
        "soft_ce": lambda: -(p * q.log()).sum(dim=1),
        "kl": lambda: (p * (p / q).log()).sum(dim=1),
        "reverse_kl": lambda: (q * (q / p).log()).sum(dim=1),
        "overlap": lambda: torch.minimum(p, q).sum(dim=1),
        "l1": lambda: (p - q).abs().sum(dim=1),
        "tv": lambda: (p - q).abs().sum(dim=1) / 2,
        "lk_alpha": lambda: -torch.minimum(p, q).sum(dim=1).log(),
    }[name]()


SHAPES = {
    "plain": LogitShape(),
    "scaled": LogitShape(multiplier=1.7),
    "capped": LogitShape(multiplier=0.8, softcap=2.0),
}


def shaped(logits: Tensor, shape: LogitShape) -> Tensor:
    z = logits * shape.multiplier
    return z if shape.softcap is None else shape.softcap * torch.tanh(z / shape.softcap)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_every_term_equals_its_formula_in_value_and_gradient(shape: LogitShape, chunk: int) -> None:
    hidden, head, labels, teacher = inputs()
    weights = torch.linspace(0.5, 2.0, ROWS, dtype=torch.float64)
    own, plain = (hidden.clone().requires_grad_() for _ in range(2))
    # All at once, so that no term spoils what another reads; and a mix of all.
    mixes = [*({name: 1.0} for name in TERMS), dict.fromkeys(TERMS, 0.3)]
    found = row_losses(own, head, labels, mixes, teacher_MH=teacher, shape=shape, chunk_rows=chunk).losses
    logits = shaped(plain @ head.T, shape)
    terms = [reference(name, logits, teacher @ head.T, labels) for name in TERMS]
    expected = [*terms, sum(term * 0.3 for term in terms)]
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        (gradient,) = torch.autograd.grad((ours * weights).sum(), own, retain_graph=True)
        (wanted,) = torch.autograd.grad((theirs * weights).sum(), plain, retain_graph=True)
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-11, msg=f"mix {i}")


def test_the_probability_of_the_label_and_the_candidates_come_with_the_loss() -> None:
    hidden, head, labels, _ = inputs(1)
    shape = LogitShape(softcap=1.5)
    found = row_losses(hidden, head, labels, [{"ce": 1.0}], shape=shape, top_k=4, chunk_rows=2)
    q = shaped(hidden @ head.T, shape).softmax(dim=1)
    torch.testing.assert_close(found.label_log_q_M.exp(), q.gather(1, labels.unsqueeze(1)).squeeze(1))
    assert found.candidates_MK.tolist() == (hidden @ head.T).topk(4).indices.sort(dim=1).values.tolist()


def test_unknown_terms_and_missing_teachers_are_refused() -> None:
    hidden, head, labels, _ = inputs()
    with pytest.raises(ValueError, match=r"unknown terms \['js'\]"):
        row_losses(hidden, head, labels, [{"js": 1.0}])
    with pytest.raises(ValueError, match=r"\['kl'\] need the teacher"):
        row_losses(hidden, head, labels, [{"kl": 1.0}])


# Blocks.

VALID = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0]]).bool()


def blocks_of_rows(rows: Tensor, fill: float = 0.0) -> Tensor:
    out = torch.full((*VALID.shape, *rows.shape[1:]), fill, dtype=rows.dtype)
    out[VALID] = rows
    return out


def blocks() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden, head, labels, teacher = inputs(3)
    return blocks_of_rows(hidden), head, blocks_of_rows(labels), blocks_of_rows(teacher)


WEIGHTS = torch.tensor([1.0, 0.6, 0.3], dtype=torch.float64).expand(4, 3)


@pytest.mark.parametrize("kind", ["ce", "kl", "reverse_kl", "l1", "tv", "lk_alpha"])
def test_block_losses_equal_their_formulas(kind: LossKind) -> None:
    hidden, head, labels, teacher = blocks()
    hidden.requires_grad_()
    found = block_loss(hidden, head, labels, VALID, loss=BlockLoss(kind=kind), weights_NM=WEIGHTS, teacher_NMH=teacher)
    rows = hidden[VALID]
    losses = reference(kind, rows @ head.T, teacher[VALID] @ head.T, labels[VALID])
    torch.testing.assert_close(found.numerator, (losses * WEIGHTS[VALID]).sum())
    torch.testing.assert_close(found.denominator, WEIGHTS[VALID].sum())
    (ours,), (theirs,) = (
        torch.autograd.grad(x, hidden, retain_graph=True) for x in (found.numerator, (losses * WEIGHTS[VALID]).sum())
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_lk_lambda_weighs_by_the_acceptance_of_its_block() -> None:
    hidden, head, labels, teacher = blocks()
    loss = BlockLoss(kind="lk_lambda", lk_scale=0.9, lk_decay=2.0)
    found = block_loss(hidden, head, labels, VALID, loss=loss, weights_NM=WEIGHTS, teacher_NMH=teacher)
    expected = 0.0
    for n in range(len(VALID)):
        rows = VALID[n]
        args = (hidden[n][rows] @ head.T, teacher[n][rows] @ head.T, labels[n][rows])
        kl, overlap = reference("kl", *args), reference("overlap", *args)
        w = 0.9 * torch.exp(-2.0 * overlap.mean())
        expected = expected + ((w * kl + (1 - w) * (1 - overlap)) * WEIGHTS[n][rows]).sum()
    torch.testing.assert_close(found.numerator, expected)
    # A block alone gives the same: nothing depends on the blocks beside it.
    parts = [
        block_loss(
            hidden[n : n + 1], head, labels[n : n + 1], VALID[n : n + 1], loss=loss, weights_NM=WEIGHTS[n : n + 1],
            teacher_NMH=teacher[n : n + 1],
        ).numerator
        for n in range(len(VALID))
    ]  # fmt: skip
    torch.testing.assert_close(sum(parts), expected)


@pytest.mark.parametrize("form", ["dpace", "dpace_prefix", "dpace_suffix"])
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=30)
def test_dpace_weights_equal_loops(form: Dpace, seed: int, smoothing: float) -> None:
    g = torch.Generator().manual_seed(seed)
    q = torch.rand(3, 5, generator=g, dtype=torch.float64)
    lengths = torch.randint(1, 6, (3, 1), generator=g)
    valid = torch.arange(5) < lengths
    found = dpace_weights(q, valid, smoothing=smoothing, form=form)
    for n, j in itertools.product(range(3), range(5)):
        prefix = [1.0]
        for i in range(5):
            prefix.append(prefix[-1] * ((1 - smoothing) * float(q[n, i]) + smoothing if valid[n, i] else 1.0))
        later = sum(prefix[i + 1] for i in range(j, 5) if valid[n, i])
        wanted = {"dpace": later, "dpace_prefix": prefix[j + 1], "dpace_suffix": later / prefix[j + 1]}[form]
        assert float(found[n, j]) == pytest.approx(wanted if valid[n, j] else 0.0, rel=1e-9)


def test_dpace_weights_have_no_gradient_and_are_the_denominator() -> None:
    hidden, head, labels, _ = blocks()
    hidden.requires_grad_()
    loss = BlockLoss(weighting="dpace", dpace_smoothing=0.25)
    found = block_loss(hidden, head, labels, VALID, loss=loss, weights_NM=WEIGHTS)
    q = blocks_of_rows((-reference("ce", hidden[VALID] @ head.T, hidden[VALID] @ head.T, labels[VALID])).exp().detach())
    weights = dpace_weights(q, VALID, smoothing=0.25)
    losses = reference("ce", hidden[VALID] @ head.T, hidden[VALID] @ head.T, labels[VALID])
    torch.testing.assert_close(found.denominator, weights.sum())
    torch.testing.assert_close(found.numerator, (losses * weights[VALID]).sum())
    (ours,) = torch.autograd.grad(found.numerator, hidden, retain_graph=True)
    (theirs,) = torch.autograd.grad((losses * weights[VALID]).sum(), hidden)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# Candidates.


@given(st.integers(0, 10_000), st.sampled_from([3, 130, 700]), st.sampled_from([1, 2, 8]), st.booleans())
@settings(deadline=None, max_examples=60)
def test_candidates_are_the_first_of_a_full_sort(seed: int, vocab: int, count: int, tied: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocab, generator=g)
    if tied:
        logits = (logits * 2).round()  # many equal ones, also at the border
    count = min(count, vocab)
    for row, found in zip(logits.tolist(), largest(logits, count).tolist(), strict=True):
        assert found == sorted(sorted(range(vocab), key=lambda v, row=row: (-row[v], v))[:count])


def test_more_candidates_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 5 candidates"):
        largest(torch.zeros(1, 5), 6)


def test_candidate_logits_and_their_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specflow.drafters.candidates.CHUNK_ROWS", 3)
    hidden, head, _, _ = inputs(5)
    candidates = largest(hidden @ head.T, 4)
    own, plain = (hidden.clone().requires_grad_() for _ in range(2))
    found, expected = candidate_logits(own, head, candidates), (plain @ head.T).gather(1, candidates)
    torch.testing.assert_close(found, expected)
    (found**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(own.grad, plain.grad)


def test_chunks_hold_the_vocabulary_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product of rows and vocabulary is larger than a chunk, whatever is asked for."""
    largest_seen = []
    product = module._logits

    def watched(hidden: Tensor, head: Tensor) -> Tensor:
        out = product(hidden, head)
        largest_seen.append(out.numel())
        return out

    monkeypatch.setattr(module, "_logits", watched)
    monkeypatch.setattr(module, "CHUNK_LOGITS", 2 * VOCAB)
    hidden, head, labels, teacher = inputs()
    row_losses(hidden.requires_grad_(), head, labels, [{"kl": 1.0}, {"overlap": 1.0}], teacher_MH=teacher, top_k=2)
    assert max(largest_seen) == 2 * VOCAB
