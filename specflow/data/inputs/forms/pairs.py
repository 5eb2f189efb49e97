"""``pairs``: a prompt and a response, under names that differ from data set to data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.config.inputs import PromptSource
from specflow.data.inputs.forms.registry import found_key, registered, with_system
from specflow.data.tools import Malformed

PROMPTS = ("prompt", "instruction", "question", "query")
INPUTS = ("input",)
RESPONSES = ("response", "completion", "output", "answer")


@registered("pairs")
class Pairs:
    def recognises(self, row: Mapping[str, Any], source: PromptSource) -> bool:
        asked = row.get(found_key(row, source.fields.prompt, PROMPTS) or "")
        return bool(asked.strip()) if isinstance(asked, str) else isinstance(asked, list) and bool(asked)

    def messages(self, row: Mapping[str, Any], source: PromptSource) -> Any:
        fields = source.fields
        asked = found_key(row, fields.prompt, PROMPTS)
        if asked is None:
            expected = fields.prompt or f"one of {', '.join(PROMPTS)}"
            raise Malformed("no_prompt", f"expected {expected}, found {sorted(map(str, row))}")
        prompt = row[asked]
        if isinstance(prompt, list):  # turns already
            turns = list(prompt)
        else:
            turns = [{"role": "user", "content": _joined(prompt, row, found_key(row, fields.input, INPUTS))}]
        answered = found_key(row, fields.response, RESPONSES)
        if answered is not None:
            answer = row[answered]
            turns += answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
        return with_system(row, source, turns)


def _joined(prompt: Any, row: Mapping[str, Any], key: str | None) -> Any:
    """The question and, after a blank line, the text that it is about."""
    about = row[key] if key else ""
    if isinstance(prompt, str) and isinstance(about, str) and about.strip():
        return f"{prompt}\n\n{about}"
    return prompt
