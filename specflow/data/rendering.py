"""From messages to token ids, by the target's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.data.quarantine import DataError


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

    def ids(self, messages: Sequence[Mapping[str, str]], *, answer: bool = False) -> list[int]:
        """Token ids of ``messages``; with ``answer`` followed by the header of the assistant's turn."""
        rendered = self._tokenizer.apply_chat_template(
            [dict(m) for m in messages], tokenize=True, add_generation_prompt=answer
        )
        return flat_ids(rendered)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False)) if ids else ""

    def is_special(self, token: int) -> bool:
        return token in self._special

    @property
    def _special(self) -> frozenset[int]:
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        special = [i for i, token in added.items() if getattr(token, "special", True)]
        return frozenset([*special, *getattr(self._tokenizer, "all_special_ids", [])])


def flat_ids(rendered: Any) -> list[int]:
    """A flat list of int from whatever a version of ``apply_chat_template`` returns.

    That is a list, a list of one list, an array or tensor, an ``Encoding``, or a mapping with
    ``input_ids``. Raises :class:`DataError` for text or a batch of several rows.
    """
    if isinstance(rendered, Mapping):
        rendered = rendered["input_ids"]
    elif hasattr(rendered, "data") and isinstance(rendered.data, Mapping):  # BatchEncoding
        rendered = rendered.data["input_ids"]
    if hasattr(rendered, "ids"):  # tokenizers.Encoding
        rendered = rendered.ids
    if hasattr(rendered, "tolist"):
        rendered = rendered.tolist()
    if isinstance(rendered, Sequence) and len(rendered) == 1 and not isinstance(rendered[0], int | str):
        return flat_ids(rendered[0])
    if isinstance(rendered, str) or not isinstance(rendered, Sequence):
        raise DataError(f"the chat template gave {type(rendered).__name__}, expected token ids")
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in rendered):
        raise DataError(f"the chat template gave a list of {type(rendered[0]).__name__}, expected token ids of one row")
    return list(rendered)
