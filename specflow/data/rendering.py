"""From messages to token ids, by the target's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specflow.data.flat import flat_ids
from specflow.data.frames import STAND_INS, Frame
from specflow.data.pieces import Encoded, PieceEncoder
from specflow.data.quarantine import DataError
from specflow.data.template import ChatTemplate, Message, TemplateRefused, arguments_of, prepared

__all__ = ["Chat", "Renderer", "flat_ids"]
PROBES = (
    [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}],
)


class Renderer:
    """Renders messages exactly as serving does: the template alone decides about BOS and headers.

    Raises :class:`DataError` for a tokenizer without chat template.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise DataError(
                "the target's tokenizer has no chat template, so messages cannot be rendered; "
                "expected `chat_template` in tokenizer_config.json or a chat_template.jinja beside it"
            )
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._encoder = PieceEncoder(tokenizer, self._tokens_of_the_template())
        self.stand_ins = self._known_characters()
        self.frames: dict[Any, Frame] = {}
        """What the template writes around contents, by shape of conversation; see ``specflow.data.turns``."""
        self.thinking_switch = self._template.thinking_switch()
        """The argument that switches thinking on and off; none where the template has no such switch."""

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        thinking: bool | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Chat:
        """A conversation to be rendered in parts; ``arguments`` are further ones of the template."""
        return Chat(self, self._template, prepared(messages), tools, arguments_of(thinking, arguments))

    def ids(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[Any] | None = None,
        thinking: bool | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of ``messages``; with ``answer`` followed by the header of the assistant's turn.

        ``thinking`` is the mode (none: the template's default). Raises jinja's ``TemplateError`` for
        messages that the template refuses.
        """
        chat = self.chat(messages, tools=tools, thinking=thinking, arguments=arguments)
        return list(self.encode(chat.text(len(messages), answer=answer)).ids)

    def encode(self, text: str) -> Encoded:
        return self._encoder.encode(text)

    def continued(self, base: Encoded, length: int, suffix: str) -> Encoded:
        """The encoding of ``base.text[:length] + suffix``."""
        return self._encoder.continued(base, length, suffix)

    def rest(self, base: Encoded, length: int, suffix: str) -> tuple[int, list[int]]:
        """Its ids in two parts: how many of its first are those of ``base``, and those that follow."""
        piece, rest = self._encoder.rest(base, length, suffix)
        return base.counts[piece], rest.ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False)) if ids else ""

    def is_special(self, token: int) -> bool:
        return token in self._special

    @cached_property
    def _special(self) -> frozenset[int]:
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        special = [i for i, token in added.items() if getattr(token, "special", True)]
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        return frozenset([*special, *getattr(self._tokenizer, "all_special_ids", [])]) - {unknown}

    def _known_characters(self) -> str:
        """Stand-ins that have ids of their own: unknown characters would share one, also with unknown contents."""
        ids = {c: tuple(self.encode(c).ids) for c in STAND_INS}
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        own = [c for c, i in ids.items() if unknown not in i and list(ids.values()).count(i) == 1]
        return "".join(own) if len(own) > 2 else STAND_INS

    def _tokens_of_the_template(self) -> list[str]:
        """Added tokens that occur in a rendered conversation."""
        text = ""
        for probe in PROBES:
            try:
                text = "".join(self._template.render(prepared(probe), answer=answer) for answer in (False, True))
                break
            except TemplateRefused:
                continue
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        return [t for t in (str(getattr(token, "content", token)) for token in added.values()) if t in text]


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation, with its tools and thinking mode."""

    renderer: Renderer
    _template: ChatTemplate
    messages: list[dict[str, Any]]
    tools: Sequence[Any] | None
    arguments: Mapping[str, Any]

    def text(self, count: int, *, answer: bool = False, instead: Message | None = None) -> str:
        """The first ``count`` messages rendered, with ``instead`` in place of the last of them.

        With ``answer`` the header of the assistant's next turn follows.
        """
        messages = self.messages[:count]
        if instead is not None:
            messages[-1] = dict(instead)
        return self._template.render(messages, answer=answer, tools=self.tools, arguments=self.arguments)
