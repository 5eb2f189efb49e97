"""Learning rate over steps: linear warm-up, then a cosine, a plateau with a decay at its end, or a plateau.

The rate is a pure function of the step and the parameters, so a resumed run needs no state of it. With more steps
than before a run goes on with the longer schedule's rate of its step: with ``constant``, and with ``wsd`` before its
decay, and the warm-up given in steps, that is the rate it would have had from the start.
"""

from __future__ import annotations

import math

from specflow.config.drafter import TrainParams


def rate(step: int, params: TrainParams) -> float:
    """Learning rate of 0-based ``step``; never 0 at the first one."""
    rising = warmup_steps(params)
    if step < rising:
        return params.learning_rate * (step + 1) / rising
    if params.schedule == "constant":
        return params.learning_rate
    if params.schedule == "wsd":
        shape = _stable_decay(step, rising, params)
    else:
        done = (step - rising) / max(1, params.steps - rising)
        shape = 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
    if params.final_rate:
        shape = params.final_rate + (1.0 - params.final_rate) * shape
    return params.learning_rate * shape


def warmup_steps(params: TrainParams) -> int:
    return math.ceil(params.warmup * params.steps) if params.warmup_steps is None else params.warmup_steps


def decay_start(params: TrainParams) -> int:
    """The first step of the decay of ``wsd``; at least the warm-up's end."""
    return max(warmup_steps(params), params.steps - math.ceil(params.decay * params.steps))


def _stable_decay(step: int, rising: int, params: TrainParams) -> float:
    """1, then ``1 - sqrt(share of the decay that is done)``, arXiv 2405.18392; 0 would follow the last step."""
    start = decay_start(params)
    if step < start:
        return 1.0
    done = (step - start + 1) / (params.steps - start + 1)
    return 1.0 - math.sqrt(min(done, 1.0))
