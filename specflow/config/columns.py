"""A table in plain text, for messages and logs."""

from __future__ import annotations

from collections.abc import Sequence


def plain_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns aligned with spaces; the first row is the header, the first ``left`` columns are left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return "\n".join([line(rows[0]), "  ".join("-" * w for w in widths), *(line(row) for row in rows[1:])])
