"""The DSpark losses against autograd and plain loops in float64, their gradients, and the memory they take."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specflow.drafters.dflash.forward import hidden_of
from specflow.drafters.dspark.learner import DSparkLearner
from specflow.drafters.dspark.network import DSparkNetwork
from specflow.drafters.dspark.objective import confidence_loss, corrected_losses
from specflow.drafters.training import Progress, Source, Term
from specflow.training.frozen import FrozenEnds
from specflow.training.objective import Objective
from specflow.training.ranks import Ranks
from specflow.training.sharding import Wrapped
from specflow.training.step import StepSums, accumulate_gradients
from tests.drafters.dspark_helpers import KINDS, dspark_network
from tests.drafters.helpers import VOCAB, document, tables
from tests.training.helpers import ends

torch.set_num_threads(1)
WEIGHTS = {"cross_entropy": 0.1, "l1": 0.9, "confidence": 1.0}
DECAY = 2.5


def sources(count: int = 4, seed: int = 20) -> list[Source]:
    """Documents with a teacher; the last has a gap in its supervision."""
    made = []
    for i in range(count):
        doc = document(seed + i, 24 + 3 * i)
        if i == count - 1:
            doc.supervised[14] = False
        g = torch.Generator().manual_seed(seed + i)
        legal = (doc.supervised[:-1] & doc.supervised[1:]).nonzero().squeeze(1)
        made.append(
            Source(
                token_ids_T=doc.ids,
                supervised_T=doc.supervised,
                features_TKH=doc.features,
                anchors=legal[:: 3 if i else 4],
                last_hidden_TH=torch.randn(doc.ids.numel(), 32, generator=g) * 0.5,
            )
        )
    return made


def learner_of(net: DSparkNetwork, frozen: FrozenEnds | None = None, **options: Any) -> DSparkLearner:
    return DSparkLearner(net, frozen or ends(), decay=DECAY, weights=WEIGHTS, **options)


def step(
    net: DSparkNetwork, some: list[Source], per_pass: int | None = None, **options: Any
) -> tuple[StepSums, dict[str, Tensor]]:
    learner = learner_of(net, **options)
    sums = accumulate_gradients(
        Wrapped(Objective(learner), ranks=Ranks()),
        learner,
        some,
        progress=Progress(0, 1),
        ranks=Ranks(),
        documents_per_pass=per_pass,
    )
    return sums, {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("chunk", [1, 5, 64, None])
def test_losses_and_gradients_equal_autograd_in_float64(chunk: int | None, share: float) -> None:
    g = torch.Generator().manual_seed(0)
    hidden, code, table, head, teacher = (
        torch.randn(*shape, generator=g) * size
        for shape, size in (((13, 12), 1.0), ((13, 4), 1.0), ((31, 4), 0.7), ((31, 12), 0.5), ((13, 12), 1.0))
    )
    labels, weights = torch.randint(31, (13,), generator=g), torch.rand(13, generator=g)
    wide = [x.double().requires_grad_() for x in (hidden, code, table)]
    log_q = (wide[0] @ head.double().T + wide[1] @ wide[2].T).log_softmax(1)
    p = (teacher.double() @ head.double().T).softmax(1)
    target = (1 - share) * torch.nn.functional.one_hot(labels, 31).double() + share * p
    cross_entropy, l1 = -(target * log_q).sum(1), (p - log_q.exp()).abs().sum(1)
    expected = torch.autograd.grad((0.3 * cross_entropy + 2.0 * l1) @ weights.double(), wide)
    own = [x.clone().requires_grad_() for x in (hidden, code, table)]
    found = corrected_losses(*own, head, labels, teacher, weights, share=share, chunk_rows=chunk)
    gradients = torch.autograd.grad(0.3 * found.cross_entropy + 2.0 * found.l1, own)
    assert float(found.cross_entropy.detach()) == pytest.approx(
        float(cross_entropy.detach() @ weights.double()), rel=1e-5
    )
    assert float(found.l1.detach()) == pytest.approx(float(l1.detach() @ weights.double()), rel=1e-5)
    torch.testing.assert_close(found.l1_M.double(), l1.detach(), atol=1e-5, rtol=1e-5)
    assert not found.l1_M.requires_grad
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        again = corrected_losses(hidden, code, table, head, labels, teacher, weights, share=share, chunk_rows=chunk)
    assert (again.cross_entropy, again.l1) == (found.cross_entropy, found.l1)


def test_float64_passes_the_gradient_check() -> None:
    g = torch.Generator().manual_seed(3)
    hidden, code, table, head, teacher = (
        torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((5, 6), (5, 3), (11, 3), (11, 6), (5, 6))
    )
    labels, weights = torch.randint(11, (5,), generator=g), torch.rand(5, generator=g, dtype=torch.float64)

    def losses(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        found = corrected_losses(*inputs, head, labels, teacher, weights, chunk_rows=2)  # type: ignore[call-arg]
        return found.cross_entropy, found.l1

    assert torch.autograd.gradcheck(losses, tuple(x.requires_grad_() for x in (hidden, code, table)))


def test_confidence_labels_by_hand() -> None:
    """c* = 1 - L1 / 2, and no gradient passes through it."""
    raw = torch.tensor([0.3, -1.2, 2.0], requires_grad=True)
    l1 = torch.tensor([0.0, 1.5, 2.0 + 1e-6], requires_grad=True)
    weights = torch.tensor([1.0, 0.5, 0.25])
    loss = confidence_loss(raw, l1, weights)
    s = [1 / (1 + math.exp(-x)) for x in (0.3, -1.2, 2.0)]
    expected = -math.log(s[0]) - 0.5 * (0.25 * math.log(s[1]) + 0.75 * math.log(1 - s[1])) - 0.25 * math.log(1 - s[2])
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    loss.backward()
    assert raw.grad is not None
    assert raw.grad.tolist() == pytest.approx([s[0] - 1, 0.5 * (s[1] - 0.25), 0.25 * s[2]], rel=1e-5)
    assert l1.grad is None


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_terms_equal_a_float64_loop_over_blocks(head: str, anchor: bool) -> None:
    """Every weight, label, teacher row and token before, counted out block by block."""
    net, some, (_, head_VH) = dspark_network(head, anchor), sources(), tables()
    learner = learner_of(net)
    batch = learner.prepare(some)
    assert batch is not None
    with torch.no_grad():
        hidden = hidden_of(net, batch, ends().embed)
    w1, w2 = (t.weight.detach().double() for t in (net.markov_head.markov_w1, net.markov_head.markov_w2))
    assert net.confidence_head is not None
    projection, bias = (p.detach().double() for p in net.confidence_head.proj.parameters())
    sums = dict.fromkeys(WEIGHTS, 0.0)
    denominator, block = 0.0, 0
    for source in some:
        assert source.last_hidden_TH is not None
        for at in source.anchors.tolist():
            state = torch.zeros(1, net.geometry.head_rank)
            for j in range(4):
                label_at = at + 1 + j
                if label_at >= source.token_ids_T.numel() or not source.supervised_T[at : label_at + 1].all():
                    break
                before, label = int(source.token_ids_T[label_at - 1]), int(source.token_ids_T[label_at])
                row = hidden[block, j]
                with torch.no_grad():
                    embedded = net.markov_head.markov_w1.weight[before].unsqueeze(0)
                    code, state = net.markov_head.step(row.unsqueeze(0), embedded, state)
                q = (head_VH.double() @ row.double() + w2 @ code[0].detach().double()).softmax(0)
                p = (head_VH.double() @ source.last_hidden_TH[label_at - 1].double()).softmax(0)
                l1 = float((p - q).abs().sum())
                raw = float(projection[0] @ torch.cat((row.double(), w1[before])) + bias[0])
                weight, c, s = math.exp(-j / DECAY), 1 - l1 / 2, 1 / (1 + math.exp(-raw))
                sums["cross_entropy"] -= weight * math.log(float(q[label]))
                sums["l1"] += weight * l1
                sums["confidence"] -= weight * (c * math.log(s) + (1 - c) * math.log(1 - s))
                denominator += weight
            block += 1
    found, _ = step(net, some)
    assert block == found.counts.anchors > 20
    for name, value in sums.items():
        assert found.denominators[name] == pytest.approx(denominator, rel=1e-6)
        assert found.numerators[name] == pytest.approx(value, rel=1e-5), name
    assert found.loss == pytest.approx(sum(WEIGHTS[n] * sums[n] for n in WEIGHTS) / denominator, rel=1e-5)


@pytest.mark.parametrize(("head", "anchor"), KINDS)
def test_any_split_into_passes_gives_the_same_loss_and_gradients(head: str, anchor: bool) -> None:
    """METHODS 9.6."""
    some = sources()
    whole, expected = step(dspark_network(head, anchor), some)
    for per_pass in (1, 3):
        split, found = step(dspark_network(head, anchor), some, per_pass)
        assert split.loss == pytest.approx(whole.loss, rel=1e-5)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert (found[name] - value).norm() <= 1e-5 * value.norm(), name
    assert set(expected) == {name for name, _ in dspark_network(head, anchor).named_parameters()}


def confidence_gradients(net: DSparkNetwork, *, detach: bool) -> dict[str, float]:
    """Largest magnitude per parameter, of the confidence term alone."""
    learner = learner_of(net, detach=detach)
    terms: dict[str, Term] = {t.name: t for t in learner.objective(learner.prepare(sources()), Progress(0, 1))}
    terms["confidence"].numerator.backward()
    return {name: 0.0 if p.grad is None else float(p.grad.abs().max()) for name, p in net.named_parameters()}


@pytest.mark.parametrize("head", ["markov", "rnn"])
def test_the_confidence_loss_leaves_the_drafter_alone_when_detached(head: str) -> None:
    detached = confidence_gradients(dspark_network(head), detach=True)
    assert {name for name, value in detached.items() if value} == {
        "confidence_head.proj.weight",
        "confidence_head.proj.bias",
    }
    attached = confidence_gradients(dspark_network(head), detach=False)
    reached = {name for name, value in attached.items() if value}
    assert {"fc.weight", "norm.weight", "layers.0.mlp.up_proj.weight", "markov_head.markov_w1.weight"} <= reached
    assert attached["markov_head.markov_w2.weight"] == 0.0  # it makes the label, which has no gradient


def test_without_a_confidence_head_there_is_no_such_term() -> None:
    found, gradients = step(dspark_network(confidence=False), sources())
    assert set(found.weights) == set(found.numerators) == {"cross_entropy", "l1"}
    assert not any("confidence" in name for name in gradients)


def test_a_restricted_softmax_trains_its_own_rows_only() -> None:
    some = sources()
    tokens = torch.cat([s.token_ids_T for s in some]).unique()
    assert 10 < tokens.numel() < VOCAB
    _, gradients = step(dspark_network("gated"), some, frozen=ends(tokens))
    trained = gradients["markov_head.markov_w2.weight"].abs().amax(dim=1) > 0
    assert trained.nonzero().squeeze(1).tolist() == tokens.tolist()
    _, whole = step(dspark_network("gated"), some)
    assert (whole["markov_head.markov_w2.weight"].abs().amax(dim=1) > 0).all()


def test_documents_without_last_hidden_states_are_refused() -> None:
    net, (one, *_) = dspark_network(), sources()
    learner = learner_of(net)
    bare = Source(
        token_ids_T=one.token_ids_T, supervised_T=one.supervised_T, features_TKH=one.features_TKH, anchors=one.anchors
    )
    with pytest.raises(ValueError, match="last hidden states"):
        learner.objective(learner.prepare([bare]), Progress(0, 1))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns, leaving out those of a shape known to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in tree_leaves(out) if isinstance(t, Tensor))])
        return out


def largest_tensor(rows: int, vocab: int, chunk: int) -> int:
    hidden, code, table = (torch.randn(n, d, requires_grad=True) for n, d in ((rows, 4), (rows, 2), (vocab, 2)))
    inputs = (torch.randn(vocab, 4), torch.zeros(rows, dtype=torch.int64), torch.randn(rows, 4), torch.ones(rows))
    with Largest() as seen:
        found = corrected_losses(hidden, code, table, *inputs, chunk_rows=chunk)
        (found.cross_entropy + found.l1).backward()
    return seen.elements


def test_no_tensor_grows_with_rows_times_vocabulary() -> None:
    assert largest_tensor(64, 500, chunk=8) == 8 * 500
    assert largest_tensor(256, 500, chunk=8) == 8 * 500
    assert largest_tensor(64, 1000, chunk=8) == 8 * 1000
    assert largest_tensor(64, 500, chunk=64) == 64 * 500  # the measure sees what it is to see


@pytest.mark.parametrize("anchor", [True, False])
def test_a_whole_pass_holds_no_rows_times_vocabulary(anchor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor of forward and backward is the head itself, whatever the number of blocks."""
    vocab, hidden = 2000, 32
    head = torch.randn(vocab, hidden)
    frozen = FrozenEnds(head, head, softmax_tokens=torch.arange(vocab))
    learner = learner_of(dspark_network("rnn", anchor, vocab_size=vocab), frozen)

    def largest(batch: Any) -> int:
        with Largest() as seen:
            terms = learner.objective(batch, Progress(0, 1))
            torch.stack([t.numerator for t in terms]).sum().backward()
        return seen.elements

    few, many = (learner.prepare(sources(count)) for count in (2, 4))
    assert few is not None
    assert many is not None
    rows = int(many.valid_NM.sum())
    assert rows > 2 * hidden
    monkeypatch.setattr("specflow.drafters.dspark.objective.CHUNK_LOGITS", 8 * vocab)
    assert largest(few) == largest(many) == vocab * hidden
    monkeypatch.setattr("specflow.drafters.dspark.objective.CHUNK_LOGITS", rows * vocab)
    assert largest(many) == rows * vocab
