"""Which rows can be used, against the definition, mask by mask."""

from __future__ import annotations

import itertools

import torch

from specflow.features.rows import usable_rows


def by_definition(supervised: tuple[bool, ...]) -> int:
    count = len(supervised)
    anchors = [a for a in range(count - 1) if supervised[a] and supervised[a + 1]]
    used = [t for t in range(count) if any(a > t for a in anchors) or (t + 1 < count and supervised[t + 1])]
    return max(used) + 1 if used else 0


def test_every_mask_of_up_to_nine_tokens() -> None:
    for length in range(1, 10):
        for mask in itertools.product((False, True), repeat=length):
            assert usable_rows(torch.tensor(mask)) == by_definition(mask), mask


def test_what_follows_the_answer_is_left_out() -> None:
    prompt, answer, after = [False] * 5, [True] * 4, [False] * 3
    assert usable_rows(torch.tensor(prompt + answer + after)) == 8  # the row that predicts the answer's last token
    assert usable_rows(torch.tensor(prompt)) == 0
    assert usable_rows(torch.tensor([True])) == 0
