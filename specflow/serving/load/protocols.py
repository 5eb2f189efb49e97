"""What is asked of a server, by the protocol that it speaks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specflow.config.sampling import SamplingParams
from specflow.serving.load.replies import ChatReply, GenerateReply, Reply

NEUTRAL = {"top_k": None, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
           "repetition_penalty": 1.0}  # fmt: skip
FLUSH = "/flush_cache?timeout=30"
"""SGLang's; it waits until nothing runs any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt of a benchmark: token ids, or messages that the server renders."""

    id: str
    kind: str
    ids: tuple[int, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()


class Dialect(Protocol):
    """How one protocol asks and answers."""

    @property
    def path(self) -> str:
        """Where requests are posted."""
        ...

    @property
    def health(self) -> str:
        """What a living server answers at once."""
        ...

    @property
    def flush(self) -> str | None:
        """What empties its prefix cache; none: nothing does."""
        ...

    def body(self, asked: Asked, *, max_new_tokens: int, sampling: SamplingParams, apart: bool) -> dict[str, Any]:
        """``apart``: no other request may share its prefix."""
        ...

    def reply(self) -> Reply: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """SGLang's own interface, over exact token ids."""

    end_ids: Sequence[int] = ()
    path: str = "/generate"
    health: str = "/model_info"
    flush: str | None = FLUSH

    def body(self, asked: Asked, *, max_new_tokens: int, sampling: SamplingParams, apart: bool) -> dict[str, Any]:
        drawn = {"temperature": sampling.temperature, "max_new_tokens": max_new_tokens, **_filters(sampling)}
        if self.end_ids:
            drawn["stop_token_ids"] = sorted(self.end_ids)
        body = {"input_ids": list(asked.ids), "sampling_params": drawn, "stream": True}
        # Requests with different keys share nothing, also where their prompts are equal.
        return {**body, "extra_key": uuid.uuid4().hex} if apart else body

    def reply(self) -> Reply:
        return GenerateReply()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The OpenAI protocol. Counts with every chunk are asked for; a server that has none sends them at the end."""

    model: str
    sglang: bool = False
    """Whether SGLang's additions to the protocol are understood: counters of rounds, and keys of the cache."""
    path: str = "/v1/chat/completions"
    health: str = "/v1/models"

    @property
    def flush(self) -> str | None:
        return FLUSH if self.sglang else None

    def body(self, asked: Asked, *, max_new_tokens: int, sampling: SamplingParams, apart: bool) -> dict[str, Any]:
        messages = [dict(message) for message in asked.messages]
        own: dict[str, Any] = {}
        if self.sglang:
            own = {"return_spec_tokens_details": True, **({"extra_key": uuid.uuid4().hex} if apart else {})}
        elif apart:
            # The one way to share no prefix that every server has.
            messages[0] = {**messages[0], "content": f"[{uuid.uuid4().hex}]\n{messages[0].get('content') or ''}"}
        return {
            "model": self.model,
            "messages": messages,
            **({"tools": [dict(tool) for tool in asked.tools]} if asked.tools else {}),
            "max_tokens": max_new_tokens,
            "temperature": sampling.temperature,
            **_filters(sampling),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **own,
        }

    def reply(self) -> Reply:
        return ChatReply()


def _filters(sampling: SamplingParams) -> dict[str, Any]:
    """Only what changes anything: a server may not know every name."""
    return {name: getattr(sampling, name) for name, idle in NEUTRAL.items() if getattr(sampling, name) != idle}
