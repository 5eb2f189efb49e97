"""What readers say of rows that have no value."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Blank(Enum):
    """A number that holds no row (an empty line)."""

    BLANK = "blank"


BLANK: Final = Blank.BLANK


class Unreadable(Exception):
    """A row after which the source cannot be trusted: the file is not what it seems to be."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, message)
        self.number = number
        self.message = message
