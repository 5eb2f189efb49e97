"""One of two ranks of a sharded run: ``python -m tests.training.sharded_process RANK DIRECTORY``.

Continues from the checkpoint in ``DIRECTORY/whole`` for one step, and saves in ``DIRECTORY/sharded``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from specflow.training import optimizers
from specflow.training.checkpoint import load_checkpoint, save_checkpoint
from specflow.training.ema import Ema
from tests.training.sharded import PARAMS, gradients, small


def main(rank: int, directory: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    network = small(seed=9)
    fully_shard(network, mesh=mesh)
    found, ema = optimizers.build(network, PARAMS), Ema(network, 0.9)
    state = load_checkpoint(directory / "whole", network, found, ema)
    assert state is not None
    for name, gradient in gradients(network, state.step).items():
        parameter = network.get_parameter(name)
        parameter.grad = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)  # type: ignore[attr-defined]
    found.set_rate(0.01)
    found.step()
    ema.update(network)
    state.step += 1
    save_checkpoint(directory / "sharded", network, found, state, ema, write=rank == 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), Path(sys.argv[2]))
