"""The body of an HTTP/1.1 response out of the pieces of a connection: chunked, of a length, or up to the end."""

from __future__ import annotations

from collections.abc import Sequence

Headers = list[tuple[bytes, bytes]]


class FramingError(Exception):
    """What arrives is no HTTP/1.1."""


def read_head(head: bytes) -> tuple[int, Headers]:
    """Status and headers, names in lower case; ``head``: everything before the empty line."""
    first, *lines = head.split(b"\r\n")
    parts = first.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise FramingError(f"expected a status line, found {first[:60]!r}")
    pairs = (line.partition(b":") for line in lines)
    return int(parts[1]), [(name.strip().lower(), value.strip()) for name, _, value in pairs]


class Body:
    """``feed(piece)`` gives the content in it; ``ended`` when all of it has come."""

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        named = dict(headers)
        self.ended = False
        self.to_the_end = False
        """Only the end of the connection ends it."""
        self._rest = b""
        self._left = 0
        """Bytes of the chunk, or of the body, that are still to come."""
        self._chunked = named.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._trailer = False
        if not self._chunked:
            length = named.get(b"content-length")
            self.to_the_end = length is None
            self._left = int(length or 0)
            self.ended = length is not None and not self._left

    def feed(self, piece: bytes) -> bytes:
        if not self._chunked:
            if not self.to_the_end:
                self._left -= len(piece)
                self.ended = self._left <= 0
            return piece
        data, found = self._rest + piece, []
        place = 0
        while not self.ended:
            if self._left:
                part = data[place : place + self._left]
                found.append(part)
                place += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._trailer = False
            line_end = data.find(b"\r\n", place)
            if line_end < 0:
                break
            line, place = data[place:line_end], line_end + 2
            self._line(line)
        self._rest = data[place:] if not self.ended else b""
        return b"".join(found)

    def _line(self, line: bytes) -> None:
        """A size, the end of a chunk's content, or a trailer."""
        if self._trailer:
            self.ended = not line
            return
        if not line:  # behind the content of a chunk
            return
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise FramingError(f"expected the size of a chunk, found {line[:40]!r}") from error
        self._trailer = self._left == 0
