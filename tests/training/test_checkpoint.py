"""Checkpoints: what is kept, what is refused, and that their form does not know the number of ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from specflow.training import optimizers
from specflow.training.checkpoint import (
    Progressed,
    load_best,
    load_checkpoint,
    newest,
    save_best,
    save_checkpoint,
)
from specflow.training.ema import Ema
from specflow.training.tensor_file import DamagedFile, read_tensors, read_values, write_tensors
from tests.training.sharded import PARAMS, gradients, small

torch.set_num_threads(1)


def step(network: Any, found: optimizers.Optimizers, ema: Ema, number: int) -> None:
    for name, gradient in gradients(network, number).items():
        network.get_parameter(name).grad = gradient
    found.set_rate(0.01)
    found.step()
    ema.update(network)


def test_two_ranks_continue_one_ranks_checkpoint_and_the_other_way_round(tmp_path: Path) -> None:
    network = small(seed=1)
    found, ema = optimizers.build(network, PARAMS), Ema(network, 0.9)
    for number in range(2):
        step(network, found, ema, number)
    save_checkpoint(tmp_path / "whole", network, found, Progressed(step=2), ema)
    processes = [
        subprocess.Popen([sys.executable, "-m", "tests.training.sharded_process", str(rank), str(tmp_path)])
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    step(network, found, ema, 2)  # what one rank would have done
    save_checkpoint(tmp_path / "whole", network, found, Progressed(step=3), ema)
    sharded, _ = read_tensors(tmp_path / "sharded" / "step-00000003.safetensors")
    whole, _ = read_tensors(tmp_path / "whole" / "step-00000003.safetensors")
    assert sharded.keys() == whole.keys()
    for name in whole.keys() - {"random.cpu"}:
        assert sharded[name].shape == whole[name].shape
        torch.testing.assert_close(sharded[name], whole[name], rtol=1e-6, atol=1e-7)
    again = small(seed=5)
    other, average = optimizers.build(again, PARAMS), Ema(again, 0.9)
    state = load_checkpoint(tmp_path / "sharded", again, other, average)
    assert state is not None
    assert state.step == 3
    assert all(torch.equal(p, sharded[f"network.{name}"]) for name, p in again.named_parameters())
    for number in (3, 4):
        step(network, found, ema, number)
        step(again, other, average, number)
    for name, p in again.named_parameters():
        torch.testing.assert_close(p, network.get_parameter(name), rtol=1e-6, atol=1e-7)


def test_the_newest_two_and_the_best_they_name_are_kept(tmp_path: Path) -> None:
    network = small(seed=1)
    found = optimizers.build(network, PARAMS)
    best_of = {1: 0, 2: 2, 3: 2, 4: 4, 5: 4}
    for number, best in best_of.items():
        if best in (0, number):
            save_best(tmp_path, network, best)
        save_checkpoint(tmp_path, network, found, Progressed(step=number, best_step=best))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best-00000004.safetensors", "step-00000004.safetensors", "step-00000005.safetensors",
    ]  # fmt: skip
    assert newest(tmp_path) == tmp_path / "step-00000005.safetensors"
    assert newest(tmp_path / "nothing") is None
    assert load_best(tmp_path, 4).keys() == dict(network.named_parameters()).keys()


def test_a_state_of_another_network_or_without_the_average_is_refused(tmp_path: Path) -> None:
    network = small(seed=1)
    save_checkpoint(tmp_path, network, optimizers.build(network, PARAMS), Progressed(step=1))
    wider = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7))
    with pytest.raises(ValueError, match=r"another network; different: 0.bias, 0.weight, 1.bias, 1.weight, 2.bias"):
        load_checkpoint(tmp_path, wider, optimizers.build(wider, PARAMS))
    with pytest.raises(ValueError, match="trained without ema"):
        load_checkpoint(tmp_path, network, optimizers.build(network, PARAMS), Ema(network, 0.9))


def test_random_state_and_counters_come_back(tmp_path: Path) -> None:
    network = small(seed=1)
    found = optimizers.build(network, PARAMS)
    torch.manual_seed(77)
    torch.rand(5)
    written = Progressed(step=4, best_tau=1.25, last_loss=0.5, skipped=3, seconds=9.5)
    save_checkpoint(tmp_path, network, found, written)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert load_checkpoint(tmp_path, network, found) == written
    assert torch.equal(torch.rand(3), expected)


def test_a_counter_that_is_gone_is_ignored_and_a_new_one_starts_at_its_default(tmp_path: Path) -> None:
    network = small(seed=1)
    found = optimizers.build(network, PARAMS)
    save_checkpoint(tmp_path, network, found, Progressed(step=4))
    path = tmp_path / "step-00000004.safetensors"
    tensors, values = read_tensors(path)
    write_tensors(path, tensors, {"step": values["step"], "no_longer": 7})
    assert load_checkpoint(tmp_path, network, found) == Progressed(step=4)


def test_files_are_checked_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.ones(4).bfloat16()}
    write_tensors(path, tensors, {"x": [1, None]})
    found, values = read_tensors(path)
    assert values == read_values(path) == {"x": [1, None]}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DamagedFile):
            read_tensors(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFile):
            read_tensors(path)
    with pytest.raises(DamagedFile):
        read_tensors(tmp_path / "absent.safetensors")


def test_checkpoints_hold_no_pickle(tmp_path: Path) -> None:
    network = small(seed=1)
    save_checkpoint(tmp_path, network, optimizers.build(network, PARAMS), Progressed(step=1))
    with safe_open(tmp_path / "step-00000001.safetensors", framework="pt") as opened:
        assert set(opened.metadata()) == {"values", "crc32"}
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"]
