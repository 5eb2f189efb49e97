"""What is supervised, as tables to be read: ``python -m tests.data.tables`` writes those in the fixtures anew.

One line a row: tokens apart by ``·``, those supervised in ``⟦ ⟧``, a line end as ``⏎``, a space as ``␣``.
"""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from specflow.data.rendering import Renderer
from specflow.data.spans import rows_of
from specflow.data.turns import NotAsServed
from tests.data.families import FAMILIES, FOLDER, Family, end_ids, pack_of, tokenizer_of

VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "▁": "␣"})


def table(family: Family) -> str:
    tok = tokenizer_of(family.name)
    renderer = Renderer(tok)
    lines = []
    for title, conversation in pack_of(family):
        lines.append(f"== {title}")
        try:
            rows = rows_of(renderer, end_ids=end_ids(family.name), **conversation)
            lines += [line(tok, row.ids, row.supervised) for row in rows]
        except (NotAsServed, TemplateError) as error:
            lines.append(f"{type(error).__name__}: {error}")
    return "\n".join(lines) + "\n"


def line(tok: Any, ids: list[int], supervised: list[bool]) -> str:
    parts = []
    for position, (token, mine) in enumerate(zip(ids, supervised, strict=True)):
        before = position > 0 and supervised[position - 1]
        opening = "⟦" if mine and not before else "⟧" if before and not mine else ""
        parts.append(f"{'·' if position else ''}{opening}{_shown(tok, token)}")
    return "".join(parts) + ("⟧" if supervised and supervised[-1] else "")


def _shown(tok: Any, token: int) -> str:
    content = str(tok.convert_ids_to_tokens(token))
    if token in tok.added_tokens_decoder or tok.backend_tokenizer.model.__class__.__name__ != "BPE" or "▁" in content:
        return content.translate(VISIBLE)
    decoded = tok.decode([token], skip_special_tokens=False)
    return f"\\x{content}" if "�" in decoded else decoded.translate(VISIBLE)


if __name__ == "__main__":
    for each in FAMILIES.values():
        (FOLDER / f"{each.name}.txt").write_text(table(each))
