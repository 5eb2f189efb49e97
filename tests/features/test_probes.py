"""Every fault that features can have, planted, and named by the probe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specflow.data.documents import TokenDocument
from specflow.features.capture import Captured, Capturer
from specflow.features.plan import Batch
from specflow.features.probes import (
    Probe,
    ProbeFailure,
    documents_to_probe,
    judge_alignment,
    probe_document,
    spread,
    tolerance_of,
)
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents
from tests.stages.pipeline_helpers import tiny_target

LAYERS = (0, 2)
"""The first, and the last that can be captured."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    torch.set_num_threads(1)
    return Target.load(tiny_target(tmp_path_factory.mktemp("tiny")).path, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def documents(target: Target) -> list[TokenDocument]:
    return greedy_documents(target, shared=3, other=3)


@pytest.fixture(scope="module")
def good(target: Target, documents: list[TokenDocument]) -> list[Captured]:
    capturer = Capturer(target, LAYERS, [d.ids for d in documents])
    return [capturer.run(Batch(0, (i,)))[0] for i in range(len(documents))]


@pytest.fixture
def failure(
    target: Target, documents: list[TokenDocument], good: list[Captured]
) -> Callable[[Callable[[Tensor], Tensor], str], str]:
    """What the probe says of the first document with ``change`` applied to one layer's rows or to ``last_hidden``."""

    def probed(change: Callable[[Tensor], Tensor], where: str) -> str:
        features, last = good[0].features_TKH.clone(), good[0].last_hidden_TH.clone()
        if where == "last_hidden":
            last = change(last)
        else:
            features[:, LAYERS.index(int(where))] = change(features[:, LAYERS.index(int(where))])
        with pytest.raises(ProbeFailure) as caught:
            probe_document(target, LAYERS, documents[0], Captured(features, last))
        return str(caught.value)

    return probed


def padded(rows: Tensor, filler: Tensor) -> Tensor:
    """Three rows of padding after the fifth; what does not fit any more is lost."""
    return torch.cat([rows[:5], filler, rows[5:-3]])


def at(rows: Tensor, row: int, value: float) -> Tensor:
    changed = rows.clone()
    changed[row] = value
    return changed


def noise(rows: Tensor, amount: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(rows.shape, generator=generator)
    return (rows.float() + amount * rows.float().norm(dim=-1, keepdim=True) * random / rows.shape[1] ** 0.5).bfloat16()


def swapped_bytes(rows: Tensor) -> Tensor:
    pairs = rows.contiguous().view(torch.uint8).reshape(*rows.shape, 2).flip(-1).contiguous()
    return pairs.view(torch.bfloat16).reshape(rows.shape)


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "late": (lambda x: x.roll(1, 0), "rows are shifted by +1: row t holds the state of token t - 1"),
    "early": (lambda x: x.roll(-1, 0), "rows are shifted by -1: row t holds the state of token t + 1"),
    "three late": (lambda x: x.roll(3, 0), "rows are shifted by +3"),
    "scaled": (lambda x: x * 2, "values are scaled by 2"),
    "scaled down": (lambda x: x * 0.125, "values are scaled by 0.125"),
    "normalised": (
        lambda x: (x.float() / x.float().norm(dim=-1, keepdim=True)).bfloat16(), "values are scaled by 0.",
    ),
    "float16 bits": (lambda x: x.half().view(torch.bfloat16), "the bits of float16 values were read as bfloat16"),
    "bfloat16 bits": (lambda x: x.view(torch.float16).bfloat16(), "the bits of bfloat16 values were read as float16"),
    "byte order": (swapped_bytes, "the two bytes of each value are swapped"),
    "zeros": (torch.zeros_like, "rows are zero"),
    "a zero row": (lambda x: at(x, 4, 0.0), "is zero"),
    "constant": (lambda x: x[:1].expand_as(x).clone(), "equal to the row before"),
    "padding": (lambda x: padded(x, torch.zeros(3, x.shape[1]).bfloat16()), "zero, and later rows are 3 late: padding"),
    "repeated": (lambda x: padded(x, x[4:5].expand(3, -1)), "rows 5 to 7 of"),
    "dropped": (lambda x: torch.cat([x[:5], x[6:], x[:1]]), "from row 5 on rows are shifted by -1"),
    "not finite": (lambda x: at(x, 2, torch.inf), "is not finite"),
    "other weights": (lambda x: noise(x, 0.2), "other weights or another arithmetic than declared"),
}  # fmt: skip


@pytest.mark.parametrize("where", ["last_hidden", "0", "2"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(failure: Callable[..., str], fault: str, where: str) -> None:
    change, words = FAULTS[fault]
    said = failure(change, where)
    assert words in said, said
    name = where if where == "last_hidden" else f"layer {where}"
    assert said.startswith(f"document row-0: {name} captured in a batch differs from the document alone by")


def test_rows_of_another_document_are_named(
    failure: Callable[..., str], documents: list[TokenDocument], good: list[Captured]
) -> None:
    rows = len(documents[0].ids)
    other = next(i for i in range(1, len(good)) if len(documents[i].ids) >= rows)
    common = next(t for t in range(rows) if documents[0].ids[t] != documents[other].ids[t])
    foreign = f"{rows - common} to" if common == 0 else f"rows {common} to {rows - 1} of {rows} are"
    for where, states in (("last_hidden", good[other].last_hidden_TH), ("2", good[other].features_TKH[:, 1])):
        said = failure(lambda x, s=states: s[:rows].clone(), where)
        assert said.endswith(f"{foreign} those of another document or position"), said


@pytest.mark.parametrize(
    ("declared", "taken", "words"),
    [
        (0, -1, "the features declared as layer 0 match the embedding (what layer 0 reads) better"),
        (0, 1, "the features declared as layer 0 match layer 1 better"),
        (2, 1, "the features declared as layer 2 match layer 1 better"),
        (2, 3, "the features declared as layer 2 match layer 3 better"),
        (2, -1, "the features declared as layer 2 match the embedding (what layer 0 reads) better"),
    ],
)
def test_another_layer_is_named(
    target: Target, documents: list[TokenDocument], failure: Callable[..., str], declared: int, taken: int, words: str
) -> None:
    states, _ = target.residual_states(torch.tensor(documents[0].ids), [taken])
    assert words in failure(lambda x: states[taken].bfloat16(), str(declared))


@pytest.mark.parametrize("rows", [slice(0, -1), slice(1, None)])
def test_missing_rows_are_named(
    target: Target, documents: list[TokenDocument], good: list[Captured], rows: slice
) -> None:
    features, last = good[0]
    for short in (
        Captured(features[rows], last[rows]),
        Captured(features, last[rows]),
        Captured(features[:, :1], last),
    ):
        with pytest.raises(ProbeFailure, match="rows are missing or too many"):
            probe_document(target, LAYERS, documents[0], short)
    if rows.start == 0:  # a store may leave out the last rows, and says so
        assert probe_document(target, LAYERS, documents[0], Captured(features[rows], last[rows]), whole=False).rows > 0
    else:
        with pytest.raises(ProbeFailure, match=r"rows are shifted by -1"):
            probe_document(target, LAYERS, documents[0], Captured(features[rows], last[rows]), whole=False)


def test_swapped_layers_are_named(target: Target, documents: list[TokenDocument], good: list[Captured]) -> None:
    swapped = Captured(good[0].features_TKH.flip(1), good[0].last_hidden_TH)
    with pytest.raises(ProbeFailure, match="stored in another order: declared 0, 2, found 2, 0"):
        probe_document(target, LAYERS, documents[0], swapped)


def test_a_hidden_before_the_norm_is_named(
    target: Target, documents: list[TokenDocument], failure: Callable[..., str]
) -> None:
    states, _ = target.residual_states(torch.tensor(documents[0].ids), [target.num_layers - 1])
    said = failure(lambda x: states[target.num_layers - 1].bfloat16(), "last_hidden")
    assert "they are the states before the final norm; the head reads those after it" in said


def test_sound_features_pass_and_are_counted(
    target: Target, documents: list[TokenDocument], good: list[Captured]
) -> None:
    for document, captured in zip(documents, good, strict=True):
        probe = probe_document(target, LAYERS, document, captured)
        assert probe.error < 0.005
        assert probe.neighbour_error is not None
        assert probe.neighbour_error > 0.1
        assert probe.rows == sum(document.supervised)
        assert probe.head_rows == len(document.ids)
        assert probe.head_equal + probe.head_near_ties == probe.head_rows
        assert probe.chosen + probe.near_ties == probe.rows


def test_the_neighbours_of_the_first_and_the_last_layer_count(
    target: Target, documents: list[TokenDocument], good: list[Captured]
) -> None:
    """Both sides of each stored layer: the embedding below layer 0, the last layer above layer 2."""
    probe = probe_document(target, LAYERS, documents[0], good[0])
    states, _ = target.residual_states(torch.tensor(documents[0].ids), range(-1, 4))

    def largest(layer: int, near: int) -> float:
        ours = good[0].features_TKH[:, LAYERS.index(layer)].float()
        return float(((ours - states[near]).norm(dim=1) / states[near].norm(dim=1)).max())

    expected = min(largest(0, -1), largest(0, 1), largest(2, 1), largest(2, 3))
    assert probe.neighbour_error == pytest.approx(expected)


def test_a_head_that_reads_something_else_fails_without_greedy_answers(
    target: Target, documents: list[TokenDocument], good: list[Captured], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tolerance that lets everything pass, the choices still tell."""
    from specflow.features import probes

    monkeypatch.setitem(probes.TOLERANCE, "fp32", 100.0)
    sampled = replace(documents[0], greedy=False)
    wrong = Captured(good[0].features_TKH, good[0].features_TKH[:, 1].contiguous())
    probe = probe_document(target, LAYERS, sampled, wrong)
    assert (probe.rows, probe.head_rows) == (0, len(sampled.ids))
    with pytest.raises(ProbeFailure, match=r"is the model's own choice in \d+ of \d+ rows"):
        judge_alignment([probe])


@pytest.mark.parametrize(("good_rows", "passes"), [(99, True), (98, False)])
def test_the_share_of_agreeing_rows_is_judged_over_all_documents(good_rows: int, passes: bool) -> None:
    none = {"error": 0.0, "neighbour_error": 1.0, "rows": 0, "chosen": 0, "near_ties": 0}
    first = Probe(**{**none, "head_rows": 50, "head_equal": 40, "head_near_ties": 10})  # type: ignore[arg-type]
    second = Probe(**{**none, "head_rows": 50, "head_equal": good_rows - 50})  # type: ignore[arg-type]
    if passes:
        judge_alignment([first, second])
    else:
        with pytest.raises(ProbeFailure, match="98 of 100 rows"):
            judge_alignment([first, second])


def test_which_documents_are_probed() -> None:
    assert spread(10, 2) == [2, 7]
    assert spread(3, 5) == [0, 1, 2]
    assert spread(0, 3) == []
    assert documents_to_probe([4, 9, 7, 1], per_shard=0, shard=0) == [7]
    assert documents_to_probe([4, 9, 7, 1], per_shard=0, shard=1) == []
    assert documents_to_probe([4, 9, 7, 1], per_shard=2, shard=1) == [1, 9]
    assert documents_to_probe([], per_shard=2, shard=0) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8"])
def test_the_tolerance_covers_what_storage_rounds(dtype: str) -> None:
    """Rows with an outlier channel, the worst for a scale per row."""
    rows = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    rows[::2, 5] = 300.0
    largest = rows.abs().amax(dim=1, keepdim=True)
    if dtype == "int8":
        read = (rows / largest * 127).round() * largest / 127
    elif dtype == "float8_e4m3fn":
        read = (rows / largest * 448).to(torch.float8_e4m3fn).float() * largest / 448
    else:
        read = rows.bfloat16().float()
    error = float(((read - rows).norm(dim=1) / rows.norm(dim=1)).max())
    assert error <= tolerance_of("fp32", dtype=dtype, hidden_size=64)
    assert tolerance_of("bf16", dtype=dtype, hidden_size=64) > tolerance_of("fp32", dtype=dtype, hidden_size=64)
