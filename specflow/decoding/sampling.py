"""How the tokens of one request are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite

from specflow.config.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One request's sampling. Temperature 0 is greedy, ties to the lowest id; everything else samples.

    Raises ``ValueError`` with every value that is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    """Least probability of a token, as a share of the most probable one's."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token emitted so far."""
    frequency_penalty: float = 0.0
    """The same, times how often it was emitted."""
    repetition_penalty: float = 1.0
    """Divides positive logits of emitted tokens, multiplies negative ones."""
    draft_temperature: float = 0.0
    """0: proposals are the drafter's argmax; else drawn at this temperature with the same filters and penalties.

    Changes speed only: the output has the target's distribution either way.
    """
    seed: int = 0

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ValueError("sampling: " + "; ".join(problems))

    def _problems(self) -> Iterator[str]:
        numbers = {name: getattr(self, name) for name in ("temperature", "draft_temperature", "min_p", "top_p")}
        penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        for name, value in {**numbers, **{name: getattr(self, name) for name in penalties}}.items():
            if not isfinite(value):
                yield f"{name}: expected a finite number, found {value}"
        for name in ("temperature", "draft_temperature"):
            if numbers[name] < 0:
                yield f"{name}: expected at least 0, found {numbers[name]}"
        if self.top_k is not None and self.top_k < 1:
            yield f"top_k: expected none or at least 1, found {self.top_k}"
        if not 0 < self.top_p <= 1:
            yield f"top_p: expected more than 0 and at most 1, found {self.top_p}"
        if not 0 <= self.min_p <= 1:
            yield f"min_p: expected 0 to 1, found {self.min_p}"
        if self.repetition_penalty <= 0:
            yield f"repetition_penalty: expected more than 0, found {self.repetition_penalty}"

    @property
    def penalised(self) -> bool:
        """Whether a token's logit depends on the tokens emitted before it."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def argmax(self) -> bool:
        """Whether the next token is the argmax of the target's own logits."""
        return self.temperature == 0.0 and not self.penalised

    @property
    def drafting(self) -> Sampling:
        """The same for proposals that are drawn."""
        return replace(self, temperature=self.draft_temperature)


GREEDY = Sampling()


def sampling_of(params: SamplingParams, prompt: Sequence[int]) -> Sampling:
    """A prompt's own sampling: its seed is a function of the section's seed and of the prompt."""
    digest = blake2b(repr((params.seed, [int(token) for token in prompt])).encode(), digest_size=8).digest()
    return Sampling(**{**params.model_dump(), "seed": int.from_bytes(digest, "big")})
