"""The menu of losses and its slopes, the head in chunks, and what the draft vocabulary drops."""

from __future__ import annotations

import pytest
import torch

from specflow.drafters.eagle3 import inside
from specflow.drafters.eagle3.distances import Distance
from specflow.drafters.eagle3.head_loss import head_loss
from specflow.drafters.training import Progress
from tests.drafters.eagle3_helpers import DRAFT_IDS, ends, learner, network, source
from tests.drafters.eagle3_reference import distances
from tests.drafters.helpers import VOCAB, tables

torch.set_num_threads(1)
KINDS = ["soft_ce", "kl", "reverse_kl", "ce", "tv", "lk_alpha", "lk_lambda"]


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_slope_equal_autograd_of_the_formula(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 11, generator=g, dtype=torch.float64)
    log_p = torch.randn(3, 11, generator=g, dtype=torch.float64).log_softmax(1)
    labels, there = torch.tensor([4, 0, 10]), torch.ones(3, 4, dtype=torch.bool)
    there[1, 3] = False
    given = Distance(kind=kind, lk_scale=0.7, lk_decay=2.0)  # type: ignore[arg-type]
    loss, slope = given.of(logits.log_softmax(2), log_p, labels, there)
    for token in range(3):
        own = logits[token, there[token]].clone().requires_grad_()
        wanted = distances(kind, own.log_softmax(1), log_p[token], int(labels[token]), scale=0.7, decay=2.0)
        torch.testing.assert_close(loss[token, there[token]], wanted.detach())
        (gradient,) = torch.autograd.grad(wanted.sum(), own)
        torch.testing.assert_close(slope[token, there[token]], gradient)


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
@pytest.mark.parametrize("kind", ["soft_ce", "lk_lambda"])
def test_chunks_change_nothing(chunk: int, kind: str) -> None:
    g = torch.Generator().manual_seed(1)
    hidden, head = (torch.randn(n, 6, generator=g, requires_grad=True) for n in (12, 17))
    rows = torch.tensor([[0, 4, 8], [1, 5, -1], [2, 6, 9], [3, 7, 10], [11, -1, -1]])
    options = {
        "teacher_PH": torch.randn(5, 6, generator=g),
        "teacher_head_DH": torch.randn(17, 6, generator=g),
        "labels_P": torch.arange(5),
        "distance": Distance(kind=kind),  # type: ignore[arg-type]
    }
    weights = torch.tensor([1.0, 0.5, 0.25])
    results = []
    for size in (chunk, None):
        total = head_loss(hidden, head, rows, weights, chunk_tokens=size, **options)  # type: ignore[arg-type]
        results.append((total, *torch.autograd.grad(3.0 * total, (hidden, head))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_targets_head_has_no_gradient() -> None:
    own = learner(network())
    terms = own.objective(own.prepare([source(1)]), Progress(0, 1))
    terms[0].numerator.backward()
    assert [t.name for t in terms] == ["soft_ce"]
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in own.network.parameters())


def test_a_step_whose_tokens_are_all_outside_the_vocabulary_changes_nothing() -> None:
    _, head = tables()
    outside = next(i for i in range(len(head)) if i not in DRAFT_IDS)
    given = source(1, last_hidden_TH=head[outside].repeat(30, 1))
    own = learner(network(own_head=True))
    batch = own.prepare([given])
    assert own.denominators(batch, Progress(0, 1)) == {"soft_ce": 0.0, "outside_vocabulary": 18.0}
    loss, dropped = own.objective(batch, Progress(0, 1))
    assert (float(loss.denominator), float(dropped.numerator.detach()), float(dropped.denominator)) == (0.0, 18.0, 18.0)
    dropped.numerator.backward()
    assert all(p.grad is None or not bool(p.grad.any()) for p in own.network.parameters())


def test_teacher_mass_is_that_of_the_draft_vocabulary() -> None:
    """At the optimum, q = p restricted to the draft vocabulary, kl is zero."""
    _, head = tables()
    teacher = torch.randn(3, 32) * 0.3
    found = head_loss(
        teacher.clone(),
        head[DRAFT_IDS],
        torch.arange(3).unsqueeze(1),
        torch.ones(1),
        teacher_PH=teacher,
        teacher_head_DH=head[DRAFT_IDS],
        labels_P=torch.zeros(3, dtype=torch.int64),
        distance=Distance(kind="kl"),
    )
    assert float(found) == pytest.approx(0.0, abs=1e-5)


def test_narrow_products_stay_close() -> None:
    own = learner(network(own_head=True))
    batch = own.prepare([source(1)])
    exact = own.objective(batch, Progress(0, 1))[0].numerator
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = own.objective(batch, Progress(0, 1))[0].numerator
    narrow.backward()
    assert float(narrow.detach()) == pytest.approx(float(exact.detach()), rel=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in own.network.parameters())


def test_the_likeliest_token_of_the_whole_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any blocks of rows and columns give the argmax, of equal logits the lowest id."""
    g = torch.Generator().manual_seed(4)
    hidden, head = torch.randn(7, 6, generator=g), torch.randn(23, 6, generator=g)
    head[20], head[3] = head[11], head[2]
    logits = hidden @ head.T
    wanted = [min(v for v in range(23) if row[v] == row.max()) for row in logits]
    for rows, columns in ((1, 1), (3, 5), (100, 100)):
        monkeypatch.setattr(inside, "ROWS", rows)
        monkeypatch.setattr(inside, "COLUMNS", columns)
        assert inside.likeliest(hidden, head).tolist() == wanted


def test_what_is_inside_is_remembered_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents in another order, and with others, are found again; other rows are computed."""
    asked: list[int] = []
    likeliest = inside.likeliest

    def counted(hidden_PH: torch.Tensor, head_VH: torch.Tensor) -> torch.Tensor:
        asked.append(len(hidden_PH))
        return likeliest(hidden_PH, head_VH)

    monkeypatch.setattr(inside, "likeliest", counted)
    _, head = tables()
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[DRAFT_IDS] = True
    known = inside.InsideVocabulary(t2d, ends())
    a, b, c = (torch.randn(n, 32, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (4, 5, 9))
    for parts in ((a, b), (b, a), (c, a), (c + 1,)):
        together = torch.cat(parts)
        found = known(together, [len(part) for part in parts])
        assert found.tolist() == t2d[(together.float() @ head.T).argmax(dim=1)].tolist()
    assert asked == [9, 9, 9]
    monkeypatch.setattr(inside, "REMEMBERED", 1)  # all is forgotten, also what this very call reads
    assert known(torch.cat((a, c)), [4, 9]).numel() == 13
    assert known(torch.cat((a, c + 2)), [4, 9]).numel() == 13
    assert known(b, [5]).numel() == 5
    assert asked[3:] == [9, 5]
