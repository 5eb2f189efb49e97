"""A reply's hidden states as an array, or the reason why they are not those of the document.

Legend: T tokens, W width (layers x hidden size).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class WrongRows(Exception):
    """The server answered, but not with one row for each token that was asked for."""


def rows_of(reply: Mapping[str, Any], ids: Sequence[int], *, width: int) -> npt.NDArray[np.float32]:
    """``[T, W]`` float32; values that the server could not write (not finite) are NaN. Raises :class:`WrongRows`."""
    meta = reply["meta_info"]
    finish = meta.get("finish_reason")
    if isinstance(finish, Mapping) and finish.get("type") == "abort":
        raise WrongRows(f"the server gave the request up: {finish.get('message')}")
    _require_ids(reply.get("prompt_token_ids"), ids)
    if meta.get("prompt_tokens") != len(ids):
        raise WrongRows(f"the server read {meta.get('prompt_tokens')} tokens, {len(ids)} were sent")
    if meta.get("cached_tokens"):
        raise WrongRows(
            f"the server took {meta['cached_tokens']} of {len(ids)} tokens from its prefix cache, which has no rows: "
            "start it with --disable-radix-cache"
        )
    states = meta.get("hidden_states")
    if not states:
        raise WrongRows("the reply has no hidden states: start the server with --enable-return-hidden-states")
    try:
        rows = np.array(states[0], dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise WrongRows(f"the hidden states are no table of numbers ({error})") from error
    if rows.shape != (len(ids), width):
        raise WrongRows(_shape_problem(rows.shape, (len(ids), width)))
    return rows


def _require_ids(read: Any, sent: Sequence[int]) -> None:
    """Older servers do not say which ids they read; then the count has to do."""
    if read is None or list(read) == list(sent):
        return
    at = next((i for i, (a, b) in enumerate(zip(read, sent, strict=False)) if a != b), min(len(read), len(sent)))
    raise WrongRows(f"the server read other token ids than were sent: {len(read)} of {len(sent)}, first at {at}")


def _shape_problem(found: tuple[int, ...], expected: tuple[int, int]) -> str:
    if len(found) == 2 and found[0] != expected[0]:
        return (
            f"{found[0]} rows of hidden states for {expected[0]} tokens: the server prefilled in pieces, or took a "
            "prefix from its cache; start it with --chunked-prefill-size -1 --disable-radix-cache"
        )
    if len(found) == 2:
        return (
            f"rows of {found[1]} numbers, expected {expected[1]} (layers x hidden size): other layers than were asked"
        )
    return f"hidden states of shape {list(found)}, expected {list(expected)}"
