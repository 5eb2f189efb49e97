"""Answers from the embedded engine: one wave for each turn of the conversations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from specflow.data.answers import Answer
from specflow.data.dialogues import Dialogue
from specflow.data.regenerated import Session

if TYPE_CHECKING:
    from specflow.decoding.records import Generation
    from specflow.decoding.sampling import Sampling
    from specflow.targets.target import Target


def answer_all(
    session: Session,
    target: Target,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    batch_size: int,
    on_answer: Callable[[Dialogue], None],
) -> None:
    """Decode every turn that is missing. Rows of a wave are in the order of their prompts, to share prefixes.

    Every turn has its own seed, derived from that of ``sampling``.
    Raises :class:`specflow.data.quarantine.DataError` when more rows are given up than may be.
    """
    from specflow.decoding.plain import decode_plain

    while wave := session.waiting():

        def on_done(position: int, generation: Generation, wave: list[Dialogue] = wave) -> None:
            dialogue = wave[position]
            session.answered(dialogue, _answer(dialogue, generation, target))
            on_answer(dialogue)
            if session.hopeless:
                session.enforce()

        decode_plain(
            target,
            [dialogue.prompt_ids for dialogue in wave],
            max_new_tokens=max_new_tokens,
            sampling=[replace(sampling, seed=dialogue.seed(sampling.seed)) for dialogue in wave],
            batch_size=batch_size,
            on_done=on_done,
        )


def _answer(dialogue: Dialogue, generation: Generation, target: Target) -> Answer:
    tokens = list(generation.tokens)
    content = tokens[:-1] if generation.finish == "stop" else tokens
    return Answer(
        id=dialogue.row.id,
        turn=dialogue.turn,
        prompt_sha256=dialogue.prompt_sha256,
        text=str(target.tokenizer.decode(content, skip_special_tokens=False)),
        finish=generation.finish,
        tokens=tokens,
        token_count=len(tokens),
    )
