"""What each fault of a draft directory does at serving: one sentence per rule.

An engine loads most broken drafts without an error, so the fault shows up only as a missing speed-up.
"""

from __future__ import annotations

CONSEQUENCES = {
    "config-keys": "an unknown key is ignored, a missing one has the engine's own default: another network than the "
    "trained one, without an error",
    "constants": "the engine builds other layers than the trained ones: it starts, and accepts few proposals or none",
    "sizes": "the draft borrows the target's embedding and head: the engine stops while loading, or reads rows of "
    "other tokens",
    "heads": "the model reads these keys at the top level only: without them it has no sequential head, or another "
    "one, and few proposals are accepted",
    "visibility": "the engine's own defaults decide which rows see each other: other windows or directions than in "
    "training, and few proposals are accepted",
    "extras": "convolution or selector are built otherwise than they were trained, or not at all: few proposals are "
    "accepted",
    "convolution": "the engine stops while it builds the convolutions",
    "codebooks": "the selector reads rows of other tokens, or its kernel does not start: proposals are noise, or the "
    "first request fails",
    "features": "the drafter's map of the target's layers has another width or order than the engine captures: it "
    "stops while loading, or accepts next to nothing",
    "recurrence": "the drafter feeds itself another state than in training: the first proposal is right, those after "
    "it are not",
    "steps": "the engine drafts another number of steps than was trained: the last ones are noise, or proposals are "
    "given away",
    "vocabulary": "proposals are mapped to other tokens of the target: none is accepted, and nothing is reported",
    "layer-ids": "the engine captures other layers than training did, or cannot capture one of them: it stops at the "
    "first request, or accepts next to nothing",
    "block": "the engine drafts another number of tokens than was trained: the last rows are noise, or proposals are "
    "given away",
    "mask-token": "the rows to be filled hold another embedding than in training: the engine starts, and accepts few "
    "proposals or none",
    "positions": "the engine opens the draft with the target's context length and refuses to start",
    "rope": "positions turn by other angles than in training: acceptance falls, the more the longer the text is",
    "dtype": "weights are rounded to a dtype that was never tested, or overflow to infinity: acceptance falls, or "
    "outputs are NaN",
    "tensors": "a missing tensor stays random, an unknown one is ignored; neither is reported, and few proposals or "
    "none are accepted",
    "shapes": "the engine stops while loading this tensor",
    "values": "the draft computes something else than the trained drafter, or NaN: few proposals or none are accepted",
    "as-exported": "the file is no longer the one that was checked and measured; what it proposes is unknown",
    "temperatures": "the server refuses the file and does not start, or survival is scaled by another drafter's "
    "temperatures and the wrong positions are verified",
    "costs": "the scheduler takes every row for free and verifies everything: nothing is saved, and nothing says so",
    "target": "the draft was trained on another model's hidden states: it starts, and accepts few proposals or none",
}


def consequence(check: str) -> str:
    """The sentence of a rule. Every rule of every layout has one."""
    return CONSEQUENCES.get(check, "the draft differs from the trained drafter: proposals may be rejected")
