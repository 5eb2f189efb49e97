"""The engine side of ``regenerate``: a journal, and the engine or the server that fills it.

Every turn of a row has its own sampling stream. A resumed run of the embedded engine gives the answers of an
uninterrupted one, except where two logits lie within the rounding that another batch brings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specflow.config.regenerate import RegenerateParams
from specflow.stages.api_key import read_api_key
from specflow.stages.contract import Context, Progress, StageError

if TYPE_CHECKING:
    from specflow.data.dialogues import Dialogue, Render
    from specflow.data.prompts import Prompt
    from specflow.data.regenerated import Session
    from specflow.targets.target import Target

JOURNAL = "answers.jsonl"


def answer_prompts(
    rows: Iterable[Prompt], path: Path, params: RegenerateParams, context: Context
) -> tuple[list[Dialogue], dict[str, Any]]:
    """Every row with the target's answers or the reason why it has none, and metrics of the engine.

    ``path``: the target's directory. Raises :class:`StageError` as soon as more than ``max_skipped`` of the
    rows are given up: before anything is asked where the template or their length is the
    reason, and at the latest after the answers that are under way.
    """
    from specflow.data.answers import AnswerLog, read_answers
    from specflow.data.dialogues import open_dialogue
    from specflow.data.quarantine import DataError
    from specflow.data.regenerated import Session
    from specflow.data.tokenizer import load_tokenizer
    from specflow.targets.retrying import ServerError

    target = _target(path, params, context) if params.engine == "embedded" else None
    tokenizer, ends = load_tokenizer(path) if target is None else (target.tokenizer, frozenset(target.end_ids))
    every_turn = params.turns == "all"
    dialogues = [open_dialogue(row, every_turn=every_turn, thinking=params.thinking) for row in rows]
    journal = context.scratch / JOURNAL
    begin = time.perf_counter()
    with AnswerLog(journal) as log, context.progress("regenerate", total=len(dialogues), unit="prompts") as progress:
        session = Session(
            dialogues=dialogues,
            log=log,
            render=_renderer(tokenizer, params.chat_template_kwargs),
            ends=ends,
            room=_room(path, params),
            largest_share=params.max_skipped,
        )
        if taken := session.begin(read_answers(journal)):
            context.log(f"{taken} answers are in the journal already")
        progress.advance(sum(not d.open for d in dialogues))
        follow = _follower(session, progress, begin)
        try:
            session.enforce()
            if target is not None:
                _from_engine(session, target, params, follow)
            else:
                _from_server(session, params, follow)
            session.enforce()
        except (DataError, ServerError) as error:
            raise StageError(f"regenerate: {error}. {_kept(session, journal)}") from error
    if session.prompts_differ:
        context.log(
            f"warning: the server rendered {session.prompts_differ} of {session.answer_count} prompts otherwise than "
            "the target's chat template does; is it the same model, with the same template?"
        )
    return dialogues, _metrics(session, time.perf_counter() - begin, target, params)


def _kept(session: Session, journal: Path) -> str:
    """What is not lost, and how to go on."""
    whole = sum(bool(d.answers) and not d.open and not d.defect for d in session.dialogues)
    return (
        f"{whole} of {len(session.dialogues)} rows are answered and kept in {journal}. When it is right again, run "
        "the same command (`specflow run ...` or `specflow regenerate --config ...`) to go on: no answered row is "
        "asked for again"
    )


def _target(path: Path, params: RegenerateParams, context: Context) -> Target:
    from specflow.stages.machine import resolved
    from specflow.targets.target import Target

    precision, threads = resolved(context.scratch, path, precision=params.precision, threads=params.threads)
    return Target.load(path, precision=precision, threads=threads)


def _renderer(tokenizer: Any, further: Mapping[str, Any]) -> Render:
    from specflow.data.rendering import Renderer

    renderer = Renderer(tokenizer)

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, thinking: bool | None) -> list[int]:
        return renderer.ids(messages, answer=True, tools=tools, thinking=thinking, arguments=further)

    return render


def _room(path: Path, params: RegenerateParams) -> int | None:
    """Tokens that a prompt may have, so that the longest answer still fits the target's positions."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    positions = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return None if positions is None else int(positions) - params.max_new_tokens


def _follower(session: Session, progress: Progress, begin: float) -> Callable[[Dialogue], None]:
    def follow(dialogue: Dialogue) -> None:
        progress.describe(f"{session.token_count / (time.perf_counter() - begin):.0f} tokens/s")
        if not dialogue.open:
            progress.advance()

    return follow


def _from_engine(
    session: Session, target: Target, params: RegenerateParams, follow: Callable[[Dialogue], None]
) -> None:
    from specflow.decoding.answering import answer_all
    from specflow.decoding.sampling import Sampling

    answer_all(
        session,
        target,
        max_new_tokens=params.max_new_tokens,
        sampling=Sampling(temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=params.seed),
        batch_size=params.batch_size,
        on_answer=follow,
    )


def _from_server(session: Session, params: RegenerateParams, follow: Callable[[Dialogue], None]) -> None:
    from specflow.serving.answering import Sampling, Server, answer_all
    from specflow.targets.retrying import Retrying

    asked = params.server
    if asked.url is None:
        raise StageError("regenerate: engine `openai` needs server.url, for example http://127.0.0.1:30000/v1")
    server = Server(
        url=asked.url,
        model=asked.model,
        api_key=read_api_key(asked.api_key_file, option="regenerate: server.api_key_file"),
        retrying=Retrying(retries=asked.retries, backoff=asked.backoff),
        timeout=asked.timeout,
        concurrency=asked.concurrency,
        token_ids=asked.token_ids,
    )
    sampling = Sampling(
        max_new_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed,
        further=params.chat_template_kwargs,
    )
    if session.waiting():
        answer_all(session, server, sampling, on_answer=follow)


def _metrics(session: Session, seconds: float, target: Target | None, params: RegenerateParams) -> dict[str, Any]:
    engine = {"server_model": ", ".join(sorted(session.models))} if target is None else {"precision": target.precision}
    return {
        "engine": params.engine,
        "sampling": {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "seed": params.seed,
            "max_new_tokens": params.max_new_tokens,
        },
        "thinking": params.thinking,
        "chat_template_kwargs": params.chat_template_kwargs,
        **engine,
        **session.notes,
        "prompts_differ": session.prompts_differ,
        "decoded_rows": session.answer_count,
        "seconds": seconds,
        "tokens_per_second": session.token_count / seconds if session.token_count else None,
    }
