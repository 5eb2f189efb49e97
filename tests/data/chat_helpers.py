"""A byte-level tokenizer made in code, and three chat templates with what they render, written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

Pieces = list[tuple[str, str]]
"""(what, text): ``template``, ``content`` or ``end``, concatenated to the rendered text."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = (
    "<|bos|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}</s>{% else %}"
    "[{{ m.role }}] {{ m.content }} [answer] {% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role != 'assistant' %}{{ m.content }}"
    "{% else %}{% set parts = m.content.split('</think>') %}"
    "{% if loop.last %}{{ '<think>\n' + (parts[0].replace('<think>', '').strip() if parts|length > 1 else '')"
    " + '\n</think>\n\n' + parts[-1].strip() }}{% else %}{{ parts[-1].strip() }}{% endif %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|bos|>", "<|head|>", "<|/head|>", "<|eot|>", "</s>", "<|pad|>")
MERGES = ("o w", "Ġ t", "h e", "Ġt he", "i n", "Ġ x", "e r", "Ġ a", "l l")


def tokenizer(
    template: str | None = CHATML, *, end: str = "<|im_end|>", pad: str = "<|pad|>", bos: bool = False
) -> Any:
    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [(left, right) for left, right in (m.split(" ") for m in MERGES)]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", core.token_to_id("<|bos|>"))]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=end,
        pad_token=pad,
        bos_token="<|bos|>" if bos else None,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made


def chatml(messages: Sequence[dict[str, str]]) -> Pieces:
    pieces: Pieces = []
    for m in messages:
        mine = m["role"] == "assistant"
        pieces += [("template", f"<|im_start|>{m['role']}\n"), ("content" if mine else "template", m["content"])]
        pieces += [("end" if mine else "template", "<|im_end|>"), ("template", "\n")]
    return pieces


def trimming(messages: Sequence[dict[str, str]]) -> Pieces:
    pieces: Pieces = [("template", "<|bos|>")]
    for m in messages:
        mine = m["role"] == "assistant"
        pieces.append(("template", f"<|head|>{m['role']}<|/head|>\n\n"))
        pieces.append(("content" if mine else "template", m["content"].strip()))
        pieces.append(("end" if mine else "template", "<|eot|>"))
    return pieces


def plain(messages: Sequence[dict[str, str]]) -> Pieces:
    pieces: Pieces = []
    for m in messages:
        if m["role"] == "assistant":
            pieces += [("content", m["content"]), ("end", "</s>")]
        else:
            pieces.append(("template", f"[{m['role']}] {m['content']} [answer] "))
    return pieces


def brute_force(tok: Any, pieces: Pieces) -> tuple[list[int], list[bool]]:
    """Ids of the text and, per token, whether it overlaps a character of content or is a turn's end."""
    text = "".join(t for _, t in pieces)
    wanted = [what != "template" for what, t in pieces for _ in t]
    encoded = tok(text, add_special_tokens=False, return_offsets_mapping=True)
    marks = [any(wanted[start:end]) for start, end in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), marks


TEMPLATES: dict[str, tuple[str, str, Callable[[Sequence[dict[str, str]]], Pieces]]] = {
    "chatml": (CHATML, "<|im_end|>", chatml),
    "trimming": (TRIMMING, "<|eot|>", trimming),
    "plain": (PLAIN, "</s>", plain),
}
