"""Whether an answer shows thoughts, and whether it should."""

from __future__ import annotations

import re
from collections.abc import Collection

from specflow.data.conversations import Defect

THINK_TAG = re.compile(
    r"</?\s*(?:seed:)?think(?:ing)?\s*>|\[/?THINK\]|<\|channel\|>\s*analysis|<\|(?:begin|end)_of_thought\|>",
    re.IGNORECASE,
)
"""Marks around thoughts in the formats of the known model families."""


def mode_defect(text: str, *, reasoning: str | None, declared: bool | None, finish: str) -> Defect | None:
    """Why an answer is not in the declared mode, or ``None``; without a declaration every answer fits.

    An answer that was cut off while it thinks may show no tag: the template may have opened the thought.
    """
    if declared is None:
        return None
    found = THINK_TAG.search(text)
    if not declared and (found or reasoning):
        shown = repr(found.group()) if found else "the server took thoughts out of it"
        return Defect("thinking_not_declared", f"thinking is false, the answer has {shown}")
    if declared and not found and not reasoning and finish != "length":
        return Defect("thinking_missing", "thinking is true, the answer has no thoughts")
    return None


def mode_name(modes: Collection[bool | None]) -> str:
    """One word for the thinking modes of documents: ``template_default``, ``on``, ``off``, or ``mixed``."""
    names = {None: "template_default", True: "on", False: "off"}
    found = {names[mode] for mode in modes} or {"template_default"}
    return found.pop() if len(found) == 1 else "mixed"
