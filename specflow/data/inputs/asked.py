"""What the target is asked where it answers every turn of a row: two rows may share a question without being equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from specflow.data.conversations import Message
from specflow.data.inputs.rows import Row, to_json

ASKED: Final = np.dtype([("content", "<u8", (2,)), ("row", "<u4")])
"""Per turn that is asked for: 128-bit hash of what it is asked with; place of its row among the chunk's usable ones."""


def asked_contents(row: Row) -> Iterator[bytes]:
    """What each turn is asked with: the turns before it, without the answers that the target replaces, and the tools.

    The target's own answers, which stand there instead, follow from the rest.
    """
    given: list[Message] = []
    for message in row.messages:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            yield to_json([given, row.tools], sort_keys=True)
        else:
            given.append(message)
    yield to_json([given, row.tools], sort_keys=True)
