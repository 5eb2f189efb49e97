"""The held-out walk equals decoding: the engine's target, proposer and exact verification on the same documents."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.decoding.plain import decode_plain
from specflow.decoding.records import Round
from specflow.decoding.speculative import decode_speculative
from specflow.drafters.dflash.geometry import geometry_like_target
from specflow.drafters.dflash.initialise import initialise_random
from specflow.drafters.dflash.network import DFlashNetwork
from specflow.drafters.dflash.proposer import DFlashProposer
from specflow.targets.target import Target
from specflow.targets.tiny import make_tiny_target
from specflow.training.data import Documents
from specflow.training.frozen import FrozenEnds
from specflow.training.proposer_walk import walk_with_proposer
from specflow.training.walk_sums import WalkSums, answers_of
from tests.training.helpers import MemorySource, Stored, trainer, walked

torch.set_num_threads(1)
LAYERS = (0, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(make_tiny_target(tmp_path_factory.mktemp("tiny"), 0), threads=1)


@pytest.fixture(scope="module")
def source(target: Target) -> MemorySource:
    """Conversations of one or two answers, every answer the target's own greedy one."""
    found = MemorySource([])
    for index in range(8):
        ids: list[int] = []
        supervised: list[bool] = []
        for turn in range(1 + index % 2):
            drawn = torch.randint(0, 250, (4 + index,), generator=torch.Generator().manual_seed(10 * index + turn))
            ids += drawn.tolist()
            supervised += [False] * drawn.numel()
            answer = decode_plain(target, [ids], max_new_tokens=9 + 4 * index)[0].tokens
            ids += answer
            supervised += [True] * len(answer)
        output = target.forward(torch.tensor([ids]), target.new_cache(1, len(ids)), layer_ids=LAYERS)
        assert output.features_BTKH is not None
        split, kind = "heldout" if index > 5 else "train", "ab"[index // 4]
        found.stored.append(
            Stored(
                index,
                kind,
                split,
                torch.tensor(ids),
                torch.tensor(supervised),
                output.features_BTKH[0].clone(),
                output.last_hidden_BTH[0],
            )
        )
    return found


def drafter(target: Target, source: MemorySource, *, block_size: int, steps: int, scratch: Path) -> DFlashNetwork:
    mask = target.tokenizer.convert_tokens_to_ids("<|unused|>")
    geometry = geometry_like_target(
        target.config.to_dict(), num_layers=1, block_size=block_size, layer_ids=LAYERS, mask_token_id=mask
    )
    network = DFlashNetwork(geometry)
    initialise_random(network, seed=1)
    params = TrainParams(steps=steps, documents_per_step=4, anchors_per_document=8, learning_rate=4e-3)
    docs = Documents(source, columns=range(2))
    trainer(network, params, decay=4.0, docs=docs, scratch=scratch, ends=ends(target), train=range(8), heldout=[]).run()
    return network


def ends(target: Target) -> FrozenEnds:
    everything = torch.arange(target.vocab_size)
    return FrozenEnds(target.embedding_weight, target.head_weight, softmax_tokens=everything)


def decoded(target: Target, proposer: DFlashProposer, stored: Stored) -> list[list[Round]]:
    """Rounds of decoding every answer of a document."""
    found = []
    for start, last in answers_of(stored.supervised_T):
        ids = stored.token_ids_T.tolist()
        made = decode_speculative(target, proposer, ids[:start], max_new_tokens=last - start + 1)
        assert made.tokens == ids[start : last + 1]
        found.append(made.rounds)
    return found


def counted(answers: list[list[Round]], proposals: int) -> WalkSums:
    """The engine's rounds as the walk counts them: only what the answer still needed."""
    sums = WalkSums(proposals=proposals)
    for rounds in answers:
        remaining = sum(r.delivered for r in rounds)
        for r in rounds:
            assert sums.add_round(accepted=min(r.accepted, remaining), remaining=remaining) == r.delivered
            remaining -= r.delivered
    return sums


@pytest.mark.parametrize(("block_size", "steps"), [(4, 1), (5, 60), (8, 150)])
def test_walk_equals_decoding(
    target: Target, source: MemorySource, tmp_path: Path, block_size: int, steps: int
) -> None:
    network = drafter(target, source, block_size=block_size, steps=steps, scratch=tmp_path)
    proposer = DFlashProposer(network, embed=target.embed, head=target.head)
    docs = Documents(source, columns=range(2))
    documents = [docs.get(p) for p in range(8)]
    side_by_side = walked(network, documents, ends(target))
    one_by_one = walk_with_proposer(proposer, documents)
    expected = [counted(decoded(target, proposer, stored), block_size - 1) for stored in source.stored]
    assert side_by_side.documents == expected
    assert one_by_one.documents == expected
    assert side_by_side.kinds == one_by_one.kinds == list("aaaabbbb")
    total = side_by_side.walk
    assert total.delivered == sum(s.delivered for s in expected)
    assert steps == 1 or 1.1 < total.tau < block_size  # neither trivial end, so that the comparison means something
    found = side_by_side.to_dict()
    assert found["tau_low"] <= found["tau"] <= found["tau_high"]
    for kind in "ab":
        figures = found["by_kind"][kind]
        mine = [s for s, k in zip(expected, side_by_side.kinds, strict=True) if k == kind]
        assert figures["tau"] == sum(s.delivered for s in mine) / sum(s.rounds for s in mine)
        assert figures["documents"] == 4
        assert len(figures["acceptance_interval"]) == len(figures["conditional_interval"]) == block_size - 1
