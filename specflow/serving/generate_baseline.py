"""Tokens per second of transformers' own ``generate``, as an outside measure of the engine's plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from specflow.decoding.records import Generation
from specflow.targets.pretrained import load_causal_model

DTYPES = ("float32", "bfloat16")


class GenerateBaseline:
    """Greedy ``generate`` of one prompt at a time, with the time from the first token to the last."""

    def __init__(self, path: Path, *, dtype: str) -> None:
        self._model = load_causal_model(path, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], *, max_new_tokens: int, end_ids: Iterable[int] | None = None) -> Generation:
        """Plain greedy decoding; the first token belongs to the prefill time. ``end_ids``: none, the model's own."""
        own = {} if end_ids is None else {"eos_token_id": sorted(end_ids)}
        ids = torch.tensor([list(prompt)])
        stamps: list[float] = []

        def stamp(input_ids: Any, scores: Any, **_: Any) -> Any:
            stamps.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        begin = time.perf_counter()
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[stamp],
            **own,
        )
        tokens = output[0, ids.shape[1] :].tolist()
        return Generation(
            prompt_length=len(prompt),
            tokens=tokens,
            finish="length" if len(tokens) == max_new_tokens else "stop",
            prefill_seconds=stamps[0] - begin,
            decode_seconds=stamps[-1] - stamps[0],
        )


def alternate(
    modes: dict[str, Callable[[Sequence[int]], Generation]], prompts: Sequence[Sequence[int]]
) -> dict[str, list[Generation]]:
    """Every mode on every prompt; who begins moves on by one with each prompt, so that drift favours none."""
    names = list(modes)
    found: dict[str, list[Generation]] = {name: [] for name in names}
    for number, prompt in enumerate(prompts):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(modes[name](prompt))
    return found
