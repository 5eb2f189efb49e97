"""One answer as it streams in, by the protocol of the server: what came when, and what was counted.

The server's counts decide how many tokens an arrival holds. An event that carries text, reasoning or a part of a tool
call is an arrival, and so is one without any by which the count grows: the token was generated, its bytes are held
back. The role that begins an answer, and the usage that ends it, are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from specflow.serving.load.samples import Arrival, Counters


class BadReply(Exception):
    """A reply that cannot be counted; ``reason`` is short, one of few."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class Reply(Protocol):
    """Fed with the events of one answer."""

    def take(self, event: Mapping[str, Any], at: float) -> None:
        """Raises :class:`BadReply` where the event says that the request failed."""
        ...

    def arrived(self) -> tuple[Arrival, ...]: ...

    def finish(self) -> tuple[str, float, Counters]:
        """Why and when it ended, and its counts. Raises :class:`BadReply` where it did not end, or miscounts."""
        ...


class Stream:
    """What every protocol keeps."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._finished: tuple[str, float] | None = None

    def add(self, *, at: float, carries: bool, tokens: int | None) -> None:
        before = self._arrivals[-1].tokens if self._arrivals else 0
        if tokens is not None and before is not None and tokens < before:
            raise BadReply("contradicts_itself", f"{tokens} tokens after {before}")
        if not carries and not (tokens is not None and before is not None and tokens > before):
            return
        if self._arrivals and self._arrivals[-1].at == at:
            # In one piece of the connection: they came together.
            self._arrivals[-1] = Arrival(at, tokens)
        else:
            self._arrivals.append(Arrival(at, tokens))

    def ended(self, reason: str, at: float, detail: str = "") -> None:
        if reason == "abort":
            raise BadReply("aborted_by_server", detail or "finish reason abort")
        self._finished = self._finished or (reason, at)

    def arrived(self) -> tuple[Arrival, ...]:
        return tuple(self._arrivals)

    def conclude(self, counters: Counters | None) -> tuple[str, float, Counters]:
        """Raises :class:`BadReply` for every way in which an answer is no data point."""
        if self._finished is None:
            raise BadReply("broken_off", f"the stream ended after {len(self._arrivals)} arrivals without a finish")
        if counters is None:
            raise BadReply("no_token_count", "the server states no usage: how many tokens it sent is unknown")
        if not self._arrivals:
            raise BadReply("empty_answer", f"{counters.tokens} tokens and nothing that a user sees")
        last = self._arrivals[-1].tokens
        if last is not None and last > counters.tokens:
            raise BadReply("contradicts_itself", f"{counters.tokens} tokens in all, {last} before the end")
        if counters.tokens < 1 or (counters.reasoning_tokens or 0) > counters.tokens:
            raise BadReply(
                "contradicts_itself", f"{counters.tokens} tokens, {counters.reasoning_tokens} of them reasoning"
            )
        return (*self._finished, counters)


class GenerateReply(Stream):
    """SGLang's ``/generate``: every event states how many tokens there are so far."""

    def __init__(self) -> None:
        super().__init__()
        self._meta: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any], at: float) -> None:
        if event.get("error"):
            raise BadReply("server_error", str(event["error"]))
        meta = event.get("meta_info")
        if not isinstance(meta, Mapping) or "completion_tokens" not in meta:
            raise BadReply("not_the_protocol", "an event without meta_info.completion_tokens")
        self._meta = meta
        self.add(at=at, carries=False, tokens=int(meta["completion_tokens"]))
        if reason := meta.get("finish_reason"):
            self.ended(str(reason["type"]), at, str(reason.get("message", "")))

    def finish(self) -> tuple[str, float, Counters]:
        return self.conclude(counters_of(self._meta) if self._meta else None)


def counters_of(meta: Mapping[str, Any]) -> Counters:
    """From SGLang's ``meta_info``. Raises :class:`BadReply` where its counts of rounds contradict each other."""
    rounds, accepted = meta.get("spec_verify_ct"), meta.get("spec_correct_drafts_histogram")
    correct, cut = meta.get("spec_num_correct_drafts"), meta.get("spec_cap_lens_histogram")
    if rounds is not None and accepted:
        counted = sum(accepted), sum(r * n for r, n in enumerate(accepted))
        if counted[0] != rounds or (correct is not None and counted[1] != correct):
            raise BadReply("contradicts_itself", f"{rounds} rounds accept {correct}, the histogram is {accepted}")
    return Counters(
        tokens=int(meta["completion_tokens"]),
        prompt_tokens=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"),
        reasoning_tokens=meta.get("reasoning_tokens"),
        rounds=rounds,
        accepted=tuple(accepted) if accepted else None,
        proposed=meta.get("spec_num_proposed_drafts"),
        cut=tuple(cut) if cut else None,
    )


class ChatReply(Stream):
    """``/v1/chat/completions``: content, reasoning and tool calls are all parts of the answer."""

    CARRIERS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")

    def __init__(self) -> None:
        super().__init__()
        self._usage: Mapping[str, Any] | None = None
        self._meta: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any], at: float) -> None:
        if error := event.get("error"):
            raise BadReply("server_error", str(error))
        usage = event.get("usage")
        if isinstance(usage, Mapping):
            self._usage = usage
        tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        # SGLang's own part, where it was asked for: the counters of `meta_info`.
        self._meta = (event.get("sglext") or {}).get("spec_tokens_details") or self._meta
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            carries = any(delta.get(name) for name in self.CARRIERS) or bool(choice.get("text"))
            self.add(at=at, carries=carries, tokens=tokens)
            if choice.get("finish_reason"):
                self.ended(str(choice["finish_reason"]), at)

    def finish(self) -> tuple[str, float, Counters]:
        return self.conclude(self._counters())

    def _counters(self) -> Counters | None:
        if self._usage is None or self._usage.get("completion_tokens") is None:
            return None
        details = self._usage.get("completion_tokens_details") or {}
        prompt = self._usage.get("prompt_tokens_details") or {}
        reasoning = details.get("reasoning_tokens", self._usage.get("reasoning_tokens"))
        rounds = counters_of({**self._meta, "completion_tokens": 0})
        return Counters(
            tokens=int(self._usage["completion_tokens"]),
            prompt_tokens=self._usage.get("prompt_tokens"),
            cached_tokens=prompt.get("cached_tokens"),
            reasoning_tokens=reasoning,
            rounds=rounds.rounds,
            accepted=rounds.accepted,
            proposed=rounds.proposed,
            cut=rounds.cut,
        )
