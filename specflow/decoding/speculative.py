"""Speculative decoding: a proposer drafts a chain or a tree per request, the target verifies all in one pass.

Every round commits ``r + 1`` rows of a request (the anchor and the accepted proposals) and emits ``r + 1`` tokens
(the accepted proposals and the target's own next token): METHODS 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specflow.decoding.records import Generation
from specflow.decoding.rounds import Rounds
from specflow.decoding.sampling import GREEDY, Sampling
from specflow.decoding.slots import Plan, run, sampling_of_each
from specflow.decoding.trees import TreeShape
from specflow.drafters.base import Confident, Expands, Proposer, Samples
from specflow.scheduling.scheduler import Schedule, Scheduler
from specflow.targets.target import Target


def decode_speculative(
    target: Target,
    proposer: Proposer,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    tree: TreeShape | None = None,
    scheduler: Scheduler | None = None,
) -> Generation:
    """One request; see :func:`decode_speculative_batch`."""
    return decode_speculative_batch(
        target, proposer, [prompt], max_new_tokens=max_new_tokens, sampling=[sampling], tree=tree, scheduler=scheduler
    )[0]


def decode_speculative_batch(
    target: Target,
    proposer: Proposer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sequence[Sampling] | None = None,
    batch_size: int = 1,
    tree: TreeShape | None = None,
    scheduler: Scheduler | None = None,
    on_done: Callable[[int, Generation], None] | None = None,
) -> list[Generation]:
    """Decoding whose outputs have the distribution of plain decoding; greedy ones equal it, up to ties within rounding.

    ``sampling``: one per prompt, none: all greedy. Each request stops at an end token, which is kept, or after
    ``max_new_tokens``; results are in prompt order. Feeding a prompt's features to the proposer counts as decoding
    time but belongs to no round. ``tree``: requests whose proposals are not drawn get a tree of this shape, none: a
    chain. ``scheduler``: how many proposals of each request are verified, none: all; a new schedule begins with the
    call. ``on_done(index, generation)`` is called as requests finish. Raises ``ValueError`` on empty prompts, if
    proposals are to be drawn, or trees drafted, by a proposer that cannot, or if there is no confidence to schedule by.
    """
    if any(not prompt for prompt in prompts) or max_new_tokens < 1 or batch_size < 1:
        shortest = min(map(len, prompts), default=0)
        raise ValueError(
            f"a prompt of {shortest} tokens, {max_new_tokens} new ones and a batch of {batch_size}: "
            "expected at least 1 of each"
        )
    asked = sampling_of_each(sampling, requests=len(prompts))
    if any(s.draft_temperature for s in asked) and not isinstance(proposer, Samples):
        raise ValueError(
            f"draft_temperature above 0: {type(proposer).__name__} cannot draw its proposals; use draft_temperature 0"
        )
    if tree is not None and not isinstance(proposer, Expands):
        raise ValueError(f"a tree: {type(proposer).__name__} proposes chains only; leave the tree out")
    schedule = _schedule(scheduler, proposer, tree)
    if not prompts:
        return []
    plan = Plan(target=target, max_new_tokens=max_new_tokens, sampling=asked, on_done=on_done)
    width, longest = min(batch_size, len(prompts)), max(map(len, prompts))
    run(Rounds(plan, proposer, width=width, longest=longest, tree=tree, schedule=schedule), prompts)
    return [plan.results[i] for i in range(len(prompts))]


def _schedule(scheduler: Scheduler | None, proposer: Proposer, tree: TreeShape | None) -> Schedule | None:
    """None where everything is verified."""
    if scheduler is None or not scheduler.active:
        return None
    if tree is not None:
        raise ValueError("a scheduler and a tree: a scheduler grants rows of chains; leave one of the two out")
    if not isinstance(proposer, Confident):
        raise ValueError(f"a scheduler: {type(proposer).__name__} has no confidence to go by; leave the scheduler out")
    if proposer.num_proposals != scheduler.num_proposals:
        raise ValueError(
            f"a scheduler for {scheduler.num_proposals} proposals, and a proposer of {proposer.num_proposals}"
        )
    return scheduler.begin()
