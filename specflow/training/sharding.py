"""How the weights lie on several ranks: all on each (DDP) or a part on each (FSDP). Gradients are sums, not means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from specflow.training.objective import Objective
from specflow.training.ranks import Ranks


class Wrapped:
    """The objective of one rank. Within ``passing``, gradients are exchanged in the last pass of a step only."""

    def __init__(self, objective: Objective, *, ranks: Ranks, parallel: str = "ddp") -> None:
        """Raises ``ValueError`` for a way of sharing that is not known. With fsdp the parameters become parts."""
        self._parallel = parallel if ranks.size > 1 else "alone"
        self.module: Any = objective
        if self._parallel == "ddp":
            devices = [ranks.device] if ranks.device.type == "cuda" else None
            self.module = nn.parallel.DistributedDataParallel(objective, device_ids=devices, forward_sync_buffers=False)
            # DDP inspects annotations of a hook and does not know postponed ones; a lambda has none.
            self.module.register_comm_hook(None, lambda state, bucket: _summed(bucket))
        elif self._parallel == "fsdp":
            _shard(objective, ranks)
        elif self._parallel != "alone":
            raise ValueError(f"expected parallel to be ddp or fsdp, found {parallel!r}")

    @contextlib.contextmanager
    def passing(self, *, last: bool) -> Iterator[None]:
        if self._parallel == "fsdp":
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        with self.module.no_sync() if self._parallel == "ddp" and not last else contextlib.nullcontext():
            yield


def _shard(objective: Objective, ranks: Ranks) -> None:
    """One group of parameters: a drafter fits into memory whole, its optimiser's state and gradients are shared."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    fully_shard(objective, mesh=mesh)
    sharded: Any = objective
    sharded.set_gradient_divide_factor(1.0)
    # A rank's part of a small parameter may be empty; sums need no special operation of the backend.
    sharded.set_force_sum_reduction_for_comms(True)


def _summed(bucket: Any) -> torch.futures.Future[Tensor]:
    """DDP's exchange without its division: every pass was already divided by the whole step's denominator."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
