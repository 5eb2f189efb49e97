"""Which token's embedding marks a row that is still to be predicted."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")
_CHAT = re.compile(r"im_|think|tool|eot|eos|bos|pad|unk|end|start|system|user|assistant|header|role|turn", re.I)
_PREFERRED = (re.compile("mask", re.I), re.compile(r"unused|reserved|extra|placeholder|dummy", re.I))


class NoMaskToken(ValueError):
    """No token can serve as the mask; the message says what to set."""


def choose_mask_token(
    tokenizer: Any, *, vocab_size: int, wanted: str | None = None, end_ids: Collection[int] = ()
) -> tuple[str, int]:
    """``(token, id)``. Padding, begin, end and chat tokens are never taken: they carry a meaning of their own.

    Without ``wanted``: an added token that no role, no end id and no chat template uses; tokens named mask come
    first, then unused or reserved ones, then the lowest id. Raises ``NoMaskToken``.
    """
    forbidden = {getattr(tokenizer, role, None) for role in _ROLES}
    template = getattr(tokenizer, "chat_template", None)
    templates = " ".join(template.values()) if isinstance(template, dict) else (template or "")
    if wanted is not None:
        return _check_wanted(tokenizer, wanted, forbidden, end_ids=end_ids, vocab_size=vocab_size)
    free = [
        (text, index)
        for text, index in tokenizer.get_added_vocab().items()
        if index < vocab_size
        and text not in forbidden
        and index not in end_ids
        and text not in templates
        and not (_CHAT.search(text) and not any(p.search(text) for p in _PREFERRED))
    ]
    if not free:
        raise NoMaskToken(
            "expected an unused special token in the target's tokenizer to mark rows to predict, found none; "
            "set mask_token to a token of the vocabulary that never occurs in your texts"
        )
    rank = [(next((i for i, p in enumerate(_PREFERRED) if p.search(t)), len(_PREFERRED)), i, t) for t, i in free]
    _, index, text = min(rank)
    return text, index


def _check_wanted(
    tokenizer: Any, wanted: str, forbidden: Collection[str | None], *, end_ids: Collection[int], vocab_size: int
) -> tuple[str, int]:
    index = tokenizer.get_vocab().get(wanted)
    if index is None or index >= vocab_size:
        raise NoMaskToken(
            f"mask_token {wanted!r}: expected a token of the target's vocabulary with an id below {vocab_size}, "
            f"found {'none' if index is None else index}; leave mask_token out to let one be chosen"
        )
    if wanted in forbidden or index in end_ids:
        raise NoMaskToken(
            f"mask_token {wanted!r} begins, ends or pads texts of the target; "
            "use a token without a meaning of its own, or leave mask_token out to let one be chosen"
        )
    return wanted, int(index)
