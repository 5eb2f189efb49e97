"""Chat templates of model families in our own words, with tokenizers trained here.

A template file reproduces the structure of its family (headers, turn ends, what is done with history, thoughts and
tools), not its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent.parent / "fixtures" / "templates"
CORPUS = (
    "system user assistant tool model functions commentary analysis final the answer is what who how\n\n",
    "You are a helper. What is the weather in Rome today? The weather is sunny and warm now.\n",
    '{"name": "get_weather", "arguments": {"city": "Rome"}} <think> </think> USER: ASSISTANT: ow own owner\n',
    "Hello there, how are you? I think that this is one and that is two. seven times three is 21.\n",
)
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True)
class Family:
    name: str
    special: tuple[str, ...]
    end: str
    """The token that stops generation."""
    bos: str | None = None
    kind: str = "bytes"
    """``bytes``, ``metaspace``, ``spaced`` (a space before the text after every special token) or ``unigram``."""
    right_stripping: tuple[str, ...] = ()
    """Special tokens that swallow the white space after them."""
    system: bool = True
    tools: bool = False
    thinking: bool = False
    """The template has a switch, or renders reasoning."""
    rewrites: bool = False
    """History is not what was rendered when it was new."""

    @property
    def template(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text()


FAMILIES = {
    family.name: family
    for family in (
        Family("chatml", CHATML, "<|im_end|>"),
        Family("llama3", ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>",
               bos="<|begin_of_text|>", tools=True),
        Family("llama2", ("<s>", "</s>"), "</s>", bos="<s>", kind="metaspace"),
        Family("mistral", ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                           "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"), "</s>", bos="<s>", kind="metaspace",
               tools=True),
        Family("qwen3", (*CHATML, "<think>", "</think>", "<tool_call>", "</tool_call>"), "<|im_end|>", tools=True,
               thinking=True, rewrites=True),
        Family("mistral_spaced", ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", bos="<s>", kind="spaced"),
        Family("gemma", ("<bos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", bos="<bos>", kind="metaspace"),
        Family("deepseek_r1", ("<|begin|>", "<|User|>", "<|Assistant|>", "<|end|>"), "<|end|>", bos="<|begin|>",
               thinking=True, rewrites=True),
        Family("hybrid", ("<s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), "<|end|>", bos="<s>",
               thinking=True, rewrites=True),
        Family("deepseek_v3", ("<|begin|>", "<|User|>", "<|Assistant|>", "<|end|>", "<think>", "</think>"), "<|end|>",
               bos="<|begin|>", thinking=True),
        Family("gpt_oss", ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>"),
               "<|return|>", tools=True, thinking=True, rewrites=True),
        Family("phi", ("<|user|>", "<|system|>", "<|assistant|>", "<|end|>", "<|endoftext|>"), "<|end|>",
               right_stripping=("<|user|>", "<|system|>", "<|assistant|>", "<|end|>")),
        Family("zephyr", ("<s>", "</s>"), "</s>", kind="metaspace"),
        Family("command_r", ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
                             "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
               "<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>"),
        Family("granite", ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
               "<|end_of_text|>", tools=True, thinking=True),
        Family("vicuna", ("<s>", "</s>"), "</s>"),
        Family("smollm3", CHATML, "<|im_end|>", thinking=True),
    )
}  # fmt: skip


@cache
def tokenizer_of(name: str, kind: str | None = None) -> Any:
    """A tokenizer of the family with its template; another ``kind`` in place of its own."""
    family = FAMILIES[name]
    core = _trained(kind or family.kind)
    core.add_special_tokens([
        AddedToken(t, special=True, normalized=False, rstrip=t in family.right_stripping) for t in family.special
    ])  # fmt: skip
    if family.bos:
        pair = [(family.bos, core.token_to_id(family.bos))]
        core.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=pair)
    eos = "<|endoftext|>" if family.name == "phi" else family.end
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=eos, pad_token=eos, bos_token=family.bos, clean_up_tokenization_spaces=False,
        unk_token=None if (kind or family.kind) == "bytes" else "<unk>",
    )  # fmt: skip
    made.chat_template = family.template
    return made


def end_ids(name: str) -> frozenset[int]:
    ends = (FAMILIES[name].end, "<|call|>") if name == "gpt_oss" else (FAMILIES[name].end,)
    return frozenset(tokenizer_of(name).convert_tokens_to_ids(list(ends)))


def _trained(kind: str) -> Tokenizer:
    if kind == "bytes":
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        core.train_from_iterator(
            CORPUS * 3, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
        )
        return core
    spaces = {"replacement": "▁", "prepend_scheme": "always" if kind == "spaced" else "first", "split": True}
    if kind != "unigram":
        core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        trainer: Any = trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<unk>", *(f"<0x{n:02X}>" for n in range(256))], show_progress=False
        )
    else:
        core = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"],
                                          show_progress=False)  # fmt: skip
    core.normalizer = normalizers.NFC() if kind == "unigram" else None
    core.pre_tokenizer = pre_tokenizers.Metaspace(**spaces)
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(**spaces), decoders.Fuse()])
    core.train_from_iterator(CORPUS * 3, trainer)
    return core


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"reasoning_content": thought} if thought else {})}


CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
THREE = [user("Hello"), assistant("The answer"), user("who"), assistant("one"), user("how"), assistant("two")]
PACK: dict[str, dict[str, Any]] = {
    "three turns": {"messages": THREE},
    "system": {"messages": [{"role": "system", "content": "You are a helper."}, user("what"), assistant("ow own")]},
    "white space and other scripts": {"messages": [user("what"), assistant("  é 北京 🙂\n\n- x \n")]},
    "thinking on": {"messages": [user("what"), assistant("first", "one"), user("how"), assistant("then", "two")],
                    "thinking": True},
    "thinking off": {"messages": THREE[:4], "thinking": False},
    "thoughts in the content": {"messages": [user("what"), assistant("<think>\nI think\n</think>\n\nnow")],
                                "thinking": True},
    "tools": {"messages": [user("weather"), {"role": "assistant", "content": "", "tool_calls": [CALL]},
                           {"role": "tool", "content": "sunny", "tool_call_id": "c1"}, assistant("sunny and warm")],
              "tools": TOOLS},
}  # fmt: skip


def pack_of(family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
    """The conversations that a family's template is for."""
    for title, conversation in PACK.items():
        if title == "tools" and not family.tools:
            continue
        if title.startswith("th") and title != "three turns" and not family.thinking:
            continue
        yield title, conversation
