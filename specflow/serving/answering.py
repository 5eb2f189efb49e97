"""Answers from an OpenAI-compatible server: many conversations at once, each turn after turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.data.answers import Answer
from specflow.data.dialogues import Dialogue
from specflow.data.regenerated import Session
from specflow.data.template import arguments_of
from specflow.data.tools import as_sent
from specflow.serving.openai_client import OpenAIClient, RequestRefused
from specflow.targets.retrying import Retrying, ServerError

SEED_BITS = 31
"""Every server takes a seed of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where and how to ask."""

    url: str
    model: str | None
    api_key: str | None
    retrying: Retrying
    timeout: float
    concurrency: int
    token_ids: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What every request says of decoding."""

    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    seed: int = 0
    further: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, besides the thinking mode."""


def answer_all(
    session: Session,
    server: Server,
    sampling: Sampling,
    *,
    on_answer: Callable[[Dialogue], None],
) -> None:
    """Ask for every turn that is missing, or until the session is ``hopeless``.

    Rows that the server refuses are given up; a server that cannot be used raises :class:`ServerError`. What was
    answered until then is in the session's journal, also the answers that were under way where the server is well.
    """
    asyncio.run(_answer_all(session, server, sampling, on_answer))


async def _answer_all(
    session: Session, server: Server, sampling: Sampling, on_answer: Callable[[Dialogue], None]
) -> None:
    async with OpenAIClient(
        server.url,
        api_key=server.api_key,
        retrying=server.retrying,
        timeout=server.timeout,
        concurrency=server.concurrency,
    ) as client:
        model = choose_model(await client.models(), server)
        _refuse_another_model(session, model, server)
        waiting = iter(session.waiting())
        failed: list[ServerError] = []

        async def work() -> None:
            for dialogue in waiting:  # one iterator for all: each row goes to the next worker that is free
                if client.ending:
                    return
                try:
                    await _finish(session, dialogue, client, model, server, sampling)
                except RequestRefused as error:
                    session.refuse(dialogue, error.reason, error.detail)
                except ServerError as error:
                    if error.gone:
                        raise
                    failed.append(error)
                if failed or session.hopeless:
                    client.end()  # the others still get what they have asked for
                on_answer(dialogue)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(server.concurrency):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first one to fail stopped the others
        finally:
            session.notes["retried_requests"] = client.retried
        if failed and not session.hopeless:
            raise failed[0]


async def _finish(
    session: Session, dialogue: Dialogue, client: OpenAIClient, model: str, server: Server, sampling: Sampling
) -> None:
    while dialogue.open and not client.ending:
        reply = await client.chat(request(dialogue, model, sampling, token_ids=server.token_ids))
        session.answered(dialogue, parsed(reply, dialogue, model))


def _refuse_another_model(session: Session, model: str, server: Server) -> None:
    """One artifact has the answers of one model. Without ``server.model`` the key does not say which."""
    others = session.models - {model}
    if others:
        raise ServerError(
            f"{server.url} serves {model}, and the answers kept from before are those of {', '.join(sorted(others))}; "
            f"serve that one again, or set server.model to {model!r} to begin anew with it"
        )


def choose_model(found: Sequence[str], server: Server) -> str:
    """The model to ask; raises :class:`ServerError` if it is not served, or not clear which."""
    if server.model is None and len(found) == 1:
        return found[0]
    if server.model in found:
        return str(server.model)
    names = ", ".join(found) or "none"
    asked = "server.model is not set" if server.model is None else f"server.model is {server.model!r}"
    raise ServerError(f"{server.url} serves these models: {names}; {asked}; expected one of them")


def request(dialogue: Dialogue, model: str, sampling: Sampling, *, token_ids: bool) -> dict[str, Any]:
    """Body of the request for the next turn. Parameters that a plain server may not know are sent only where set."""
    arguments = arguments_of(dialogue.thinking, sampling.further)
    body: dict[str, Any] = {
        "model": model,
        "messages": as_sent(dialogue.messages),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.temperature > 0:
        body["seed"] = dialogue.seed(sampling.seed) % 2**SEED_BITS
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k is not None:
            body["top_k"] = sampling.top_k
    if dialogue.tools:
        body["tools"] = dialogue.tools
    if arguments:
        body["chat_template_kwargs"] = arguments
    if token_ids:
        body["return_token_ids"] = True
    return body


def parsed(reply: Mapping[str, Any], dialogue: Dialogue, model: str) -> Answer:
    """The answer in a completion. Token ids stand where SGLang and vLLM put them.

    The answer's are ``response_token_ids`` (SGLang) or ``token_ids`` (vLLM) of the choice; the prompt's are in the
    choice (SGLang) or at the top (vLLM).
    """
    choice = reply["choices"][0]
    message, usage = choice["message"], reply.get("usage") or {}
    tokens = _ids(choice.get("token_ids")) or _ids(choice.get("response_token_ids"))
    prompt = _ids(choice.get("prompt_token_ids")) or _ids(reply.get("prompt_token_ids"))
    read = len(prompt) if prompt else int(usage.get("prompt_tokens") or len(dialogue.prompt_ids))
    if not prompt and read != len(dialogue.prompt_ids):
        tokens = None  # ids of an answer to a prompt that is not known make no document
    end = choice.get("matched_stop", choice.get("stop_reason"))
    if tokens and isinstance(end, int) and tokens[-1] != end:
        tokens.append(end)  # a server that cuts the end token off names it here
    count = len(tokens) if tokens else int(usage.get("completion_tokens") or 0)
    return Answer(
        id=dialogue.row.id,
        turn=dialogue.turn,
        prompt_sha256=dialogue.prompt_sha256,
        text=_text(message.get("content")),
        finish=str(choice.get("finish_reason")),
        model=model,
        tokens=tokens,
        token_count=count,
        prompt_count=read,
        prompt_ids=prompt if prompt != list(dialogue.prompt_ids) else None,
        reasoning=message.get("reasoning_content") or message.get("reasoning") or None,
        tool_calls=message.get("tool_calls") or None,
    )


def _text(content: Any) -> str:
    """Content is text, nothing, or (rarely) a list of parts of text."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content or ""


def _ids(value: Any) -> list[int] | None:
    good = isinstance(value, list) and value and all(type(i) is int and 0 <= i < 2**31 for i in value)
    return list(value) if good else None
