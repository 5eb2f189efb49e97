"""Features against transformers itself; shared prefixes against none; probes against planted faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specflow.data.documents import TokenDocument
from specflow.features.capture import Captured, Capturer
from specflow.features.plan import plan_shards
from specflow.features.probes import Probe, ProbeFailure, judge_alignment, probe_document
from specflow.targets.target import Target
from tests.stages.capture_helpers import greedy_documents
from tests.stages.pipeline_helpers import tiny_target

LAYERS = (0, 1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    torch.set_num_threads(1)
    return Target.load(tiny_target(tmp_path_factory.mktemp("tiny")).path, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def documents(target: Target) -> list[TokenDocument]:
    return greedy_documents(target)


def captured(target: Any, documents: Sequence[TokenDocument], *, share: bool, batch: int = 200) -> dict[int, Captured]:
    ids = [d.ids for d in documents]
    shards = plan_shards(ids, batch_tokens=batch, shard_tokens=1000, share_prefixes=share)
    capturer = Capturer(target, LAYERS, ids)
    return {i: c for s in shards for b in s for i, c in zip(b.documents, capturer.run(b), strict=True)}


def test_features_are_the_outputs_of_the_layers(target: Target, documents: list[TokenDocument]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target.path, dtype=torch.float32)
    made = captured(target, documents, share=True)
    assert sorted(made) == list(range(len(documents)))
    for i, document in enumerate(documents):
        with torch.no_grad():
            states = model(torch.tensor([document.ids]), output_hidden_states=True).hidden_states
        for position, layer in enumerate(LAYERS):
            wanted = states[layer + 1][0]
            assert torch.allclose(made[i].features_TKH[:, position].float(), wanted, rtol=2**-7, atol=1e-4)
        assert torch.allclose(made[i].last_hidden_TH.float(), states[-1][0], rtol=2**-7, atol=1e-4)


def test_sharing_prefixes_changes_nothing(
    target: Target, documents: list[TokenDocument], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)  # compare before rounding
    shared, plain = captured(target, documents, share=True), captured(target, documents, share=False, batch=1)
    for i in shared:
        assert shared[i].features_TKH.dtype == torch.float32
        for one, two in zip(shared[i], plain[i], strict=True):
            assert (one - two).abs().max() <= 1e-5 * two.abs().max()


def test_sharing_really_saves(target: Target, documents: list[TokenDocument]) -> None:
    rows = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def forward(self, ids: torch.Tensor, cache: Any, **more: Any) -> Any:
            nonlocal rows
            rows += ids.numel()
            return target.forward(ids, cache, **more)

    captured(Counting(), documents[:6], share=True)
    total = sum(len(d.ids) for d in documents[:6])
    assert rows < 0.6 * total


def test_results_do_not_depend_on_what_ran_before(target: Target, documents: list[TokenDocument]) -> None:
    ids = [d.ids for d in documents]
    batches = [b for s in plan_shards(ids, batch_tokens=60, shard_tokens=400) for b in s]
    assert len(batches) > 4
    through = Capturer(target, LAYERS, ids)
    for batch in batches:
        alone = Capturer(target, LAYERS, ids).run(batch)
        for one, two in zip(through.run(batch), alone, strict=True):
            assert torch.equal(one.features_TKH, two.features_TKH)
            assert torch.equal(one.last_hidden_TH, two.last_hidden_TH)


def test_good_features_pass_the_probes(target: Target, documents: list[TokenDocument]) -> None:
    made = captured(target, documents, share=True)
    probes = [probe_document(target, LAYERS, documents[i], c) for i, c in made.items()]
    assert all(p.error < 0.01 and p.neighbour_error is not None and p.neighbour_error > 0.1 for p in probes)
    assert sum(p.rows for p in probes) == sum(sum(d.supervised) for d in documents)
    assert sum(p.chosen + p.near_ties for p in probes) == sum(p.rows for p in probes)
    judge_alignment(probes)


def test_a_layer_late_is_caught(target: Target, documents: list[TokenDocument]) -> None:
    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def forward(self, ids: torch.Tensor, cache: Any, *, layer_ids: tuple[int, ...]) -> Any:
            return target.forward(ids, cache, layer_ids=tuple(k + 1 for k in layer_ids))

    made = captured(Late(), documents, share=True)
    with pytest.raises(ProbeFailure, match="declared as layer 0 match layer 1 better"):
        probe_document(target, LAYERS, documents[0], made[0])


def test_a_shifted_row_is_caught(target: Target, documents: list[TokenDocument]) -> None:
    good = captured(target, documents, share=True)[0]
    for shifted in (
        Captured(good.features_TKH.roll(1, 0), good.last_hidden_TH),
        Captured(good.features_TKH, good.last_hidden_TH.roll(-1, 0)),
    ):
        with pytest.raises(ProbeFailure, match=r"differs from the document alone|match layer"):
            probe_document(target, LAYERS, documents[0], shifted)


def test_rows_of_another_document_are_caught(target: Target, documents: list[TokenDocument]) -> None:
    made = captured(target, documents, share=True)
    rows = len(documents[0].ids)
    other = next(i for i in made if i != 0 and len(documents[i].ids) >= rows)
    swapped = Captured(made[other].features_TKH[:rows], made[other].last_hidden_TH[:rows])
    with pytest.raises(ProbeFailure):
        probe_document(target, LAYERS, documents[0], swapped)


def test_a_hidden_before_the_norm_fails_alignment(target: Target, documents: list[TokenDocument]) -> None:
    """The head does not read the states of an inner layer: another choice in most rows."""
    from specflow.features.probes import _choices_of_answer

    made = captured(target, documents, share=True)
    counts = [_choices_of_answer(target, documents[i], c.features_TKH[:, 1]) for i, c in made.items()]
    probes = [Probe(error=0, neighbour_error=None, **found) for found in counts]
    with pytest.raises(ProbeFailure, match=r"target's own next token in \d+ of"):
        judge_alignment(probes)


def test_alignment_is_judged_only_where_answers_were_greedy(target: Target, documents: list[TokenDocument]) -> None:
    from dataclasses import replace

    made = captured(target, documents, share=True)
    probe = probe_document(target, LAYERS, replace(documents[0], greedy=False), made[0])
    assert probe.rows == 0
    judge_alignment([probe])
