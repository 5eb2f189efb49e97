"""Greedy documents of the tiny target, some with a common system prompt."""

from __future__ import annotations

from pathlib import Path

import torch

from specflow.data.documents import TOKENS_FILE, TokenDocument, write_documents
from specflow.stages.contract import Artifact
from specflow.targets.target import Target
from tests.stages.pipeline_helpers import artifact

SYSTEM = "You turn a message into a record with the fields name, place and time. Answer with nothing else."


def greedy_documents(target: Target, *, shared: int = 6, other: int = 5, answer: int = 8) -> list[TokenDocument]:
    """``shared`` documents behind one long system prompt, and ``other`` different ones; various lengths."""
    documents = []
    for n in range(shared + other):
        text = ("the message " * (n % 4 + 1) + str(n)) if n < shared else f"{n} question" * (n % 3 + 1)
        messages = [{"role": "user", "content": text}]
        if n < shared:
            messages.insert(0, {"role": "system", "content": SYSTEM})
        prompt = list(target.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        produced = _greedy(target, prompt, answer + n % 3)
        documents.append(
            TokenDocument(
                id=f"row-{n}",
                split="heldout" if n % 5 == 4 else "train",
                kind="service" if n < shared else "broad",
                ids=prompt + produced,
                supervised=[False] * len(prompt) + [True] * len(produced),
                prompt_length=len(prompt),
                finish="length",
                greedy=True,
            )
        )
    return documents


def _greedy(target: Target, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        output = target.forward(torch.tensor([ids]), target.new_cache(1, len(ids)))
        ids.append(int(target.head(output.last_hidden_BTH[0, -1]).argmax()))
    return ids[len(prompt) :]


def tokens_artifact(root: Path, documents: list[TokenDocument]) -> Artifact:
    root.mkdir(parents=True, exist_ok=True)
    write_documents(root / TOKENS_FILE, documents)
    return artifact("tokens", root)
