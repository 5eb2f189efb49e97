"""What a run will need, said before it starts."""

from __future__ import annotations

import resource
from collections.abc import Sequence

import psutil
import torch
from torch import nn

from specflow.config.drafter import TrainParams
from specflow.drafters.training import Learner, Source
from specflow.training.data import Documents
from specflow.training.frozen import FrozenEnds
from specflow.training.passes import split_sources

ADAMW_STATES, MUON_STATES = 2, 1
"""Numbers that the optimiser keeps per parameter."""


def describe_memory(
    network: nn.Module, ends: FrozenEnds, documents: Documents, params: TrainParams, *, ranks: int
) -> str:
    """One line on the memory of a process, without what a pass itself needs; warns where the machine has less."""
    parameters = sum(p.numel() for p in network.parameters())
    weights, states = parameter_bytes(parameters, params, ranks=ranks)
    kept = documents.bytes_at_most
    need = weights + states + ends.bytes + kept
    text = (
        f"{parameters / 1e6:.1f} M parameters; memory of a process before its passes: weights and gradients "
        f"{_size(weights)}, optimiser {_size(states)}, the target's embedding and head {_size(ends.bytes)}, features "
        f"up to {_size(kept)}"
    )
    free = psutil.virtual_memory().available
    here = need * ranks
    if next(network.parameters()).device.type == "cpu" and here > free:
        text += f"; warning: {_size(here)} in all, {_size(free)} are free"
    return text


def parameter_bytes(parameters: int, params: TrainParams, *, ranks: int) -> tuple[int, int]:
    """Of weights with gradients and of the optimiser with the average, all fp32, on one rank."""
    parts = ranks if params.parallel == "fsdp" else 1
    kept = (MUON_STATES if params.optimizer == "muon" else ADAMW_STATES) + (params.ema is not None)
    # With fsdp a rank has its parts, and during a pass the whole weights and gradients.
    return 4 * parameters * 2, 4 * parameters * kept // parts


def describe_pass(
    learner: Learner, sources: Sequence[Source], *, documents_per_pass: int | None, softmax_rows: int
) -> str | None:
    """What the largest pass over ``sources`` is estimated to hold at its most; none if the method does not know."""
    found = 0
    for group in split_sources(sources, anchors=learner.anchors_per_pass, documents=documents_per_pass):
        held = learner.pass_bytes(
            anchors=sum(source.anchors.numel() for source in group),
            context_rows=sum(source.token_ids_T.numel() for source in group),
            softmax_rows=softmax_rows,
        )
        if held is None:
            return None
        found = max(found, held)
    return f"a pass over the first step's documents holds about {_size(found)} beside that"


def describe_time(seconds_per_step: float, steps: int) -> str:
    left = seconds_per_step * steps
    size, unit = (left / 3600, "hours") if left >= 5400 else (left / 60, "minutes") if left >= 90 else (left, "seconds")
    return f"a step takes {seconds_per_step:.2f} s: about {size:.1f} {unit} for {steps} steps, evaluations apart"


def describe_peak(device: torch.device) -> str:
    """The most memory needed so far: after a step's gradients, what a run needs but for its optimiser's state."""
    if device.type == "cuda":
        return f"peak memory {_size(torch.cuda.max_memory_allocated(device))} of the device"
    return f"peak memory of the process {_size(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}"


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
