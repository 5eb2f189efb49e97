"""What one decoded request leaves behind; every metric is a sum over these."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Round:
    """One draft-and-verify round. Times in seconds."""

    proposed: int
    """m, proposals drafted; of a tree, the length of its longest path. 0: the request drafted nothing."""
    accepted: int
    """r, proposals the target agreed with, before any cut by EOS or length."""
    delivered: int
    """Tokens the user received: r + 1, less what EOS or the length limit cut off."""
    verified: int | None = None
    """Proposals that the target judged, where a scheduler decides how many; none: all."""
    tree_nodes: int = 0
    """Proposals of the tree, all paths together; 0: a chain."""
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    state_seconds: float = 0.0
    other_seconds: float = 0.0
    schedule_seconds: float = 0.0
    """Of the other seconds, those of the scheduler."""
    confidence: tuple[float, ...] | None = None
    """Raw confidence logits of the proposals; none where the drafter has none."""

    @property
    def judged(self) -> int:
        """Proposals that the target saw."""
        return self.proposed if self.verified is None else self.verified


@dataclass(slots=True, kw_only=True)
class Generation:
    """Tokens of one request. The first token comes from prefill and belongs to no round."""

    prompt_length: int
    tokens: list[int]
    finish: str
    """``stop`` (an end token, which is the last of ``tokens``) or ``length``."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    """From the first token to the last."""
    rounds: list[Round] = field(default_factory=list)
    """Empty for plain decoding."""
