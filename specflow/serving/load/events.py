"""Server-sent events out of the pieces in which a connection delivers them."""

from __future__ import annotations

END = b"[DONE]"


class Events:
    """``feed(piece)`` gives the data of every event that the piece completes, in order.

    An event is the ``data:`` lines up to an empty line; a piece may end within a line, or hold many events. Comments
    (keep-alive) and other fields are passed over.
    """

    def __init__(self) -> None:
        self._rest, self._data = b"", [b""][:0]

    def feed(self, piece: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found
