"""Timing with a clock that is known, resuming after a kill, and real passes of a tiny target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from specflow.costs.target_passes import TargetPasses
from specflow.costs.timing import Split, time_passes
from specflow.targets.target import Target
from tests.stages.pipeline_helpers import tiny_target

SPLITS: list[Split] = [(1,), (2,), (1, 1), (2, 2)]


class FakePasses:
    """A run of a split takes the seconds that its rows say, the first one after preparing ten times as long."""

    def __init__(self) -> None:
        self.now = 0.0
        self.prepared: list[Split] = []

    def prepare(self, split: Split) -> Callable[[], object]:
        self.prepared.append(split)
        cold = [True]

        def run() -> None:
            self.now += sum(split) * (10.0 if cold.pop() else 1.0)
            cold.append(False)

        return run

    def clock(self) -> float:
        return self.now


def test_warm_runs_are_timed_in_a_shuffled_order() -> None:
    passes = FakePasses()
    cells = time_passes(passes, [*SPLITS, (1,)], visits=3, samples=2, seed=1, clock=passes.clock)
    assert [c.split for c in cells] == SPLITS
    assert [c.seconds for c in cells] == [(float(c.rows),) * 6 for c in cells]
    visits = [passes.prepared[i : i + 4] for i in (0, 4, 8)]
    assert all(sorted(visit) == sorted(SPLITS) for visit in visits)
    assert len({tuple(visit) for visit in visits}) > 1


def test_a_killed_run_continues(tmp_path: Path) -> None:
    kept, first = tmp_path / "visits.jsonl", FakePasses()
    whole = time_passes(first, SPLITS, visits=2, samples=2, seed=1, clock=first.clock, kept=kept)
    text = kept.read_text()
    kept.write_text(text[: text.rfind("{") + 9])  # the last line is torn
    second, counted = FakePasses(), []
    again = time_passes(
        second, SPLITS, visits=2, samples=2, seed=1, clock=second.clock, kept=kept, on_visit=counted.append
    )
    assert second.prepared == first.prepared[-1:]
    assert again == whole
    assert (counted, kept.read_text()) == ([7, 1], text)


def test_real_passes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    target = Target.load(tiny_target(tmp_path).path, precision="fp32", threads=1)
    passes = TargetPasses(target, contexts=(6, 9, 2), most_rows=4, layer_ids=(0, 2))
    run = passes.prepare((4, 4))
    logits = run()
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 4, target.vocab_size)
    assert torch.equal(run(), logits)  # a run leaves the requests as they were
    # Rows of a request behind its context, as one pass over both gives them.
    for request, context in enumerate((6, 9)):
        prompt = torch.arange(context) * 104729 % target.vocab_size
        ids = torch.cat((prompt, (torch.arange(12).view(3, 4) * 7919 % target.vocab_size)[request]))
        whole = target.head(target.forward(ids[None], target.new_cache(1, 13)).last_hidden_BTH)[0, context:]
        assert torch.allclose(logits[request], whole, atol=1e-4)
    # Requests with rows of their own: the same rows, in one line.
    ragged, whole_4 = passes.prepare((3, 1, 2))(), passes.prepare((4, 4, 4))()
    assert isinstance(ragged, torch.Tensor)
    assert isinstance(whole_4, torch.Tensor)
    assert ragged.shape == (1, 6, target.vocab_size)
    expected = torch.cat((whole_4[0, :3], whole_4[1, :1], whole_4[2, :2]))
    assert torch.allclose(ragged[0], expected, atol=1e-4)
