"""A tiny random Llama-like target with a byte-level tokenizer and a ChatML template, made in code.

It serves the tests and ``random:<seed>`` targets: nothing is downloaded, and the same seed gives the
same files. The head is not tied to the embeddings and the weights are wide, so that greedy text
varies instead of repeating one token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specflow.targets.pretrained import without_bars

HIDDEN = 64
LAYERS = 4
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unused|>")
MERGES = (
    "Ġ t", "h e", "i n", "Ġ a", "e r", "o n", "r e", "Ġt he", "Ġ s", "a t", "e n", "Ġ w", "o r", "i s",
    "i t", "a n", "Ġ o", "Ġ c", "e s", "in g", "Ġ b", "Ġ p", "e d", "Ġ f", "o u", "Ġ m", "a l", "a r",
    "Ġt o", "Ġ in", "Ġa n", "Ġan d", "l l", "Ġ h", "u s", "s er", "a s", "s t", "o m", "u ser",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny_target(path: Path, seed: int) -> Path:
    """Write a tiny random target as a Hugging Face directory to ``path`` and return ``path``.

    Hidden 64, 4 layers, 4 query heads over 2 key heads of 16, 300 tokens; fp32 weights drawn from
    ``seed``. Greedy text ends with ``<|im_end|>`` only by chance.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    path.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        if value.ndim == 1:  # norm scales
            state[name] = 1.0 + 0.1 * torch.randn(value.shape, generator=generator)
        else:
            fan_in = 1 if "embed_tokens" in name else value.shape[1]
            state[name] = torch.randn(value.shape, generator=generator) * (1.5 / fan_in**0.5)
    # Logit 0 loses against the best of 300 random ones: the token that masks rows never occurs in answers.
    state["lm_head.weight"][tokenizer.convert_tokens_to_ids("<|unused|>")] = 0.0
    model.load_state_dict(state, strict=True)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    with without_bars():
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|unused|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
