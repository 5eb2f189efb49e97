"""Token ids out of what the versions of transformers and tokenizers return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specflow.data.quarantine import DataError


def flat_ids(rendered: Any) -> list[int]:
    """A flat list of int from whatever a version of a tokenizer returns.

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
        raise DataError(f"the tokenizer gave {type(rendered).__name__}, expected token ids")
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in rendered):
        raise DataError(f"the tokenizer gave a list of {type(rendered[0]).__name__}, expected token ids of one row")
    return list(rendered)
