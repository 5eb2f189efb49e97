"""A killed run equals an uninterrupted one, bit for bit; non-finite steps are skipped and end the run if they last."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specflow.config.drafter import TrainParams
from specflow.training.data import Documents, documents_of_step, source_of
from specflow.training.guards import TrainingDiverged
from specflow.training.loop import Outcome
from specflow.training.tensor_file import read_tensors
from tests.training.helpers import (
    Killed,
    MemorySource,
    Monitor,
    documents,
    ends,
    fresh,
    gradients_of,
    trainer,
    walked,
)

torch.set_num_threads(1)
PARAMS: dict[str, Any] = {
    "steps": 17,
    "documents_per_step": 3,
    "anchors_per_document": 5,
    "learning_rate": 3e-3,
    "evaluate_every": 4,
    "checkpoint_every": 5,
    "log_every": 3,
    "weight_decay": 0.01,
}


def train(
    scratch: Path,
    *,
    kill_after: int | None = None,
    docs: Documents | None = None,
    heldout: list[int] | None = None,
    **changes: Any,
) -> tuple[Outcome, dict[str, torch.Tensor], Monitor]:
    source, made = documents()
    net, monitor = fresh(), Monitor(kill_after)
    made_trainer = trainer(
        net,
        TrainParams(**{**PARAMS, **changes}),
        decay=2.0,
        docs=docs or made,
        scratch=scratch,
        monitor=monitor,
        train=source.indices("train"),
        heldout=source.indices("heldout") if heldout is None else heldout,
    )
    return made_trainer.run(), {k: v.clone() for k, v in net.state_dict().items()}, monitor


def lines(outcome: Outcome) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in outcome.curve.read_text().splitlines()]
    timed = ("seconds", "anchors_per_second", "context_tokens_per_second")
    return [{k: v for k, v in line.items() if k not in timed} for line in found]


def last_weights(scratch: Path) -> dict[str, torch.Tensor]:
    return read_tensors(sorted(scratch.glob("step-*.safetensors"))[-1])[0]


Whole = tuple[Outcome, dict[str, torch.Tensor], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    scratch = tmp_path_factory.mktemp("whole")
    outcome, weights, _ = train(scratch)
    return outcome, weights, last_weights(scratch)


@pytest.fixture
def whole(uninterrupted: Whole) -> Whole:
    outcome, weights, final = uninterrupted
    return outcome, dict(weights), dict(final)


@pytest.mark.parametrize("kills", [[1], [4], [5], [6, 11], [16], [3, 3, 9, 12, 17]])
def test_a_killed_run_equals_an_uninterrupted_one(tmp_path: Path, whole: Whole, kills: list[int]) -> None:
    expected, weights, final = whole
    for kill in kills:
        with pytest.raises(Killed):
            train(tmp_path / "killed", kill_after=kill)
    (tmp_path / "killed" / "step-99999999.safetensors").write_bytes(b"cut off")  # never trusted, and removed
    found, resumed, monitor = train(tmp_path / "killed")
    saved = 17 if kills[-1] == 17 else max(k // 5 * 5 for k in kills)  # checkpoints at 5, 10, 15 and the end
    assert (f"training continues after step {saved}" in monitor.messages) == (saved > 0)
    for name, value in weights.items():
        assert torch.equal(resumed[name], value), name
    for name, value in last_weights(tmp_path / "killed").items():
        assert torch.equal(final.pop(name), value), name
    assert not final
    assert lines(found) == lines(expected)
    assert found.state.best_step == expected.state.best_step
    assert found.best is not None
    assert expected.best is not None
    assert found.best["tau"] == expected.best["tau"]


def test_curve_and_counters(tmp_path: Path) -> None:
    outcome, weights, _ = train(tmp_path)
    rows = lines(outcome)
    assert [r["step"] for r in rows if "loss" in r] == [3, 6, 9, 12, 15, 17]
    assert [r["step"] for r in rows if "tau" in r] == [0, 4, 8, 12, 16, 17]
    assert rows[-1].keys() >= {"tau", "acceptance_per_position", "by_kind", "teacher_forced_accuracy"}
    assert outcome.state.anchors == 17 * 3 * 5
    assert not any(torch.equal(weights[k], v) for k, v in fresh().state_dict().items() if outcome.state.best_step > 0)
    best = max((r for r in rows if "tau" in r), key=lambda r: (r["tau"], -r["step"]))
    assert outcome.state.best_step == best["step"]


def test_returned_weights_are_those_of_the_best_walk(tmp_path: Path) -> None:
    source, docs = documents()
    outcome, weights, _ = train(tmp_path, learning_rate=0.3)  # gets worse
    net = fresh()
    net.load_state_dict(weights)
    found = walked(net, [docs.get(p) for p in source.indices("heldout")], ends())
    assert outcome.best is not None
    assert found.walk.tau == outcome.best["tau"] == max(r["tau"] for r in lines(outcome) if "tau" in r)


def test_non_finite_steps_are_skipped_and_counted(tmp_path: Path) -> None:
    source = MemorySource([24, 31, 20, 40, 27, 33, 22, 29])
    source.stored[2].features_TKH[3] = math.nan
    outcome, weights, monitor = train(tmp_path, docs=Documents(source, columns=[0, 1, 2]))
    assert 0 < outcome.state.skipped < 17
    assert sum("skipped" in m for m in monitor.messages) == outcome.state.skipped
    assert all(bool(v.isfinite().all()) for v in weights.values())
    assert outcome.state.last_loss is not None
    assert math.isfinite(outcome.state.last_loss)


def test_ten_non_finite_steps_in_a_row_end_the_run(tmp_path: Path) -> None:
    source = MemorySource([24, 31, 20, 40, 27, 33, 22, 29])
    for stored in source.stored[:6]:
        stored.features_TKH[3] = math.inf
    with pytest.raises(
        TrainingDiverged, match=r"10 non-finite steps in a row up to step 10.*checkpoint is .*step-00000005"
    ):
        train(tmp_path, docs=Documents(source, columns=[0, 1, 2]))


@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "muon", "ema": 0.9, "schedule": "wsd", "weight_decay": 0.1}], ids=["default", "all"]
)
def test_twenty_steps_killed_after_every_one(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"steps": 20, "checkpoint_every": 1, "evaluate_every": 10, **options}
    expected, weights, _ = train(tmp_path / "whole", **options)
    for kill in range(1, 21):
        with pytest.raises(Killed):
            train(tmp_path / "killed", kill_after=kill, **options)
    found, resumed, _ = train(tmp_path / "killed", **options)
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())
    final = last_weights(tmp_path / "killed")
    assert final.keys() == last_weights(tmp_path / "whole").keys()
    assert all(torch.equal(final[name], value) for name, value in last_weights(tmp_path / "whole").items())
    assert lines(found) == lines(expected)
    assert sorted(p.name for p in (tmp_path / "killed").glob("step-*")) == [
        "step-00000019.safetensors", "step-00000020.safetensors",
    ]  # fmt: skip


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path, whole: Whole, damage: Any) -> None:
    expected, weights, _ = whole
    with pytest.raises(Killed):
        train(tmp_path, kill_after=12)  # checkpoints at 5 and 10
    damage(tmp_path / "step-00000010.safetensors")
    found, resumed, monitor = train(tmp_path)
    assert "training continues after step 5" in monitor.messages
    assert any("step-00000010.safetensors is passed over" in m for m in monitor.messages) == (damage != Path.unlink)
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())
    assert lines(found) == lines(expected)


def test_lost_best_weights_cost_the_best_and_not_the_run(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tmp_path, kill_after=12)
    for path in tmp_path.glob("best-*"):
        _flip(path)
    outcome, _, monitor = train(tmp_path)
    assert "training continues after step 10" in monitor.messages
    assert any("best weights" in m and "are lost" in m for m in monitor.messages)
    assert outcome.state.best_step > 10


def test_a_longer_schedule_continues_as_if_it_had_been_asked_for(tmp_path: Path) -> None:
    options = {"schedule": "wsd", "warmup_steps": 2, "decay": 0.3, "checkpoint_every": 2}
    expected, weights, _ = train(tmp_path / "long", steps=17, **options)
    with pytest.raises(Killed):
        train(tmp_path / "short", steps=9, kill_after=6, **options)  # its decay starts at 6
    found, resumed, _ = train(tmp_path / "short", steps=17, **options)
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())
    assert lines(found) == lines(expected)


def test_averaged_weights_are_evaluated_and_returned(tmp_path: Path) -> None:
    source, docs = documents()
    outcome, weights, _ = train(tmp_path, ema=0.9)
    final = last_weights(tmp_path)
    net = fresh()
    net.load_state_dict(weights)
    heldout = [docs.get(p) for p in source.indices("heldout")]
    assert outcome.best is not None
    assert walked(net, heldout, ends()).walk.tau == outcome.best["tau"]
    for name, value in net.named_parameters():
        assert not torch.equal(final[f"network.{name}"], final[f"ema.average.{name}"])
        assert outcome.state.best_step < 17 or torch.equal(value, final[f"ema.average.{name}"])
    _, alone, _ = train(tmp_path / "no-heldout", ema=0.9, heldout=[])
    final = last_weights(tmp_path / "no-heldout")
    assert all(torch.equal(value, final[f"ema.average.{name}"]) for name, value in alone.items())


def test_default_training_is_adamw_warm_up_and_cosine(tmp_path: Path) -> None:
    """The loop against a loop written out: the same bits after every step of a run without options."""
    source, docs = documents()
    train(tmp_path, heldout=[])
    final, net, p = last_weights(tmp_path), fresh(), TrainParams(**PARAMS)
    matrices, vectors = [[w for w in net.parameters() if (w.ndim > 1) == many] for many in (True, False)]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=3e-3, betas=(0.9, 0.95), fused=True,
    )  # fmt: skip
    train_set = source.indices("train")
    for step in range(17):
        adamw.param_groups[0]["lr"] = adamw.param_groups[1]["lr"] = (
            3e-3 if step < 1 else 3e-3 * 0.5 * (1.0 + math.cos(math.pi * (step - 1) / 16))
        )
        adamw.zero_grad()
        chosen = documents_of_step(step, count=len(train_set), per_step=3, seed=p.seed)
        drawn = [source_of(docs.get(train_set[place]), anchors=5, seed=p.seed, epoch=epoch) for epoch, place in chosen]
        gradients_of(net, drawn, ends(), decay=2.0)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adamw.step()
    assert all(torch.equal(final[f"network.{name}"], value) for name, value in net.named_parameters())


def test_best_weights_and_checkpoint_agree_after_a_kill_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation after the newest checkpoint must not replace the weights that this checkpoint calls best."""
    from specflow.training import heldout
    from specflow.training.checkpoint import load_best

    taus = iter([1.0, 2.0, 3.0, 1.5, 1.5, 1.5, 1.5])

    def evaluated(*args: Any, **options: Any) -> Any:
        tau = next(taus)
        walk = SimpleNamespace(tau=tau)
        return SimpleNamespace(walk=walk, by_kind={}, to_dict=lambda: {"tau": tau, "by_kind": {}})

    monkeypatch.setattr(heldout, "evaluate", evaluated)
    scratch = tmp_path / "killed"
    with pytest.raises(Killed):  # Evaluations at 0, 4 and 8, a checkpoint at 5.
        train(scratch, kill_after=9)
    kept = load_best(scratch, 4)
    assert load_best(scratch, 8).keys() == kept.keys()
    outcome, weights, _ = train(scratch)  # From 5; nothing walks better than at 4.
    assert (outcome.state.best_step, outcome.state.best_tau) == (4, 2.0)
    assert outcome.best is not None
    assert all(torch.equal(weights[name], value) for name, value in kept.items())
    assert [p.name for p in scratch.glob("best-*")] == ["best-00000004.safetensors"]
    assert len(list(scratch.glob("step-*"))) == 2
