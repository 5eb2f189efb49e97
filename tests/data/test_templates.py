"""Spans of the model families' templates: as tables, and against marks that are carried through the template."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.data.rendering import Renderer
from specflow.data.spans import Row, rows_of
from specflow.data.template import DATE, TemplateRefused
from specflow.data.turns import NotAsServed
from tests.data.families import CALL, FAMILIES, FOLDER, PACK, THREE, TOOLS, assistant, end_ids, tokenizer_of, user
from tests.data.tables import table

OPEN, CLOSE = "\ue000", "\ue001"
CONTENT = st.text(alphabet="x7owthe lin\n.é{<|", min_size=1, max_size=12).filter(lambda c: c == c.strip())
THOUGHT_IN_HEADER = {"deepseek_r1", "hybrid"}
RENDERERS: dict[Any, Renderer] = {}


def renderer(name: str, kind: str | None = None) -> Renderer:
    if (name, kind) not in RENDERERS:
        RENDERERS[name, kind] = Renderer(tokenizer_of(name, kind))
    return RENDERERS[name, kind]


def rendered(tok: Any, messages: list[dict[str, Any]], **more: Any) -> str:
    """By transformers, with the date of our templates in place of today's."""
    text = str(tok.apply_chat_template(messages, tokenize=False, **more))
    for form in ("%Y-%m-%d", "%d %b %Y"):
        text = text.replace(datetime.now().strftime(form), DATE.strftime(form))
    return text


def marked(tok: Any, end: str, messages: list[dict[str, Any]], last_only: bool) -> tuple[list[int], list[bool]]:
    """Ids, and whether a token overlaps a content, or what follows it up to the end of the turn."""
    mine = [i for i, m in enumerate(messages) if m["role"] == "assistant"][-1 if last_only else 0 :]
    wrapped = [
        {**m, "content": OPEN + m["content"] + CLOSE} if i in mine else m for i, m in enumerate(messages)
    ]  # fmt: skip
    text, wanted, inside = "", [], False
    pieces = rendered(tok, wrapped).split(OPEN)
    for number, piece in enumerate(pieces):
        if number:
            content, rest = piece.split(CLOSE)
            stop = rest.index(end) + len(end)
            text += content + rest
            wanted += [True] * (len(content) + stop) + [False] * (len(rest) - stop)
        else:
            text += piece
            wanted += [inside] * len(piece)
    encoded = tok(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["input_ids"]), [any(wanted[a:b]) for a, b in encoded["offset_mapping"]]


def served(tok: Any, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    return list(tok(rendered(tok, messages, add_generation_prompt=True, **more), add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_tables(name: str) -> None:
    assert (FOLDER / f"{name}.txt").read_text() == table(FAMILIES[name]), "see tests/data/tables.py"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(FAMILIES.keys() - THOUGHT_IN_HEADER)), turns=st.integers(1, 3), data=st.data())
def test_spans_are_the_contents_and_turn_ends(name: str, turns: int, data: st.DataObject) -> None:
    """And what is served before each of them is how the row begins."""
    family = FAMILIES[name]
    messages = [m for _ in range(turns) for m in (user(data.draw(CONTENT)), assistant(data.draw(CONTENT)))]
    if family.system and data.draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": data.draw(CONTENT)})
    kind = data.draw(st.sampled_from((None, "unigram")))
    tok = tokenizer_of(name, kind)
    rows = rows_of(renderer(name, kind), messages, end_ids_of(tok, name))
    ends = [i + 1 for i, m in enumerate(messages) if m["role"] == "assistant"]
    # Mistral's system text stands in the last of the user's turns.
    rewrites = family.rewrites or (name == "mistral" and messages[0]["role"] == "system")
    assert len(rows) == (turns if rewrites else 1)
    for number, row in enumerate(rows):
        until = ends[number] if rewrites else len(messages)
        assert (row.ids, row.supervised) == marked(tok, family.end, messages[:until], rewrites)
        stops = {i for i, t in enumerate(row.ids) if row.supervised[i] and t in end_ids_of(tok, name)}
        starts = [i for i, s in enumerate(row.supervised) if s and not row.supervised[i - 1] and i not in stops]
        asked = [ends[number]] if rewrites else ends
        for start, end in zip(starts, asked, strict=True):
            prompt = served(tok, messages[: end - 1])
            merged = row.ids[: len(prompt)] != prompt  # the last token, with the start of the answer
            assert row.ids[: len(prompt) - merged] == prompt[: len(prompt) - merged]
            assert start >= len(prompt) - merged


def end_ids_of(tok: Any, name: str) -> set[int]:
    return {tok.convert_tokens_to_ids(FAMILIES[name].end)}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(("deepseek_r1", "deepseek_v3", "hybrid", "qwen3", "smollm3")), data=st.data())
def test_thoughts_are_supervised_after_what_is_served(name: str, data: st.DataObject) -> None:
    thoughts = [data.draw(CONTENT) for _ in range(2)]
    messages = [m for t in thoughts for m in (user(data.draw(CONTENT)), assistant(data.draw(CONTENT), t))]
    tok = tokenizer_of(name)
    rows = rows_of(renderer(name), messages, end_ids(name), thinking=True)
    spans = [ids for row in rows for ids in supervised_ids(row)]
    assert len(spans) == 2
    for number, (row, ids) in enumerate(zip(rows if len(rows) > 1 else rows * 2, spans, strict=True)):
        prompt = served(tok, messages[: 2 * number + 1], enable_thinking=True, thinking=True)
        assert row.ids[: len(prompt)] == prompt
        assert row.supervised[len(prompt)]
        turn = messages[2 * number + 1]
        said = tok.decode(ids).removeprefix("<think>").split("</think>")
        assert [part.strip() for part in said] == [turn["reasoning_content"], turn["content"] + FAMILIES[name].end]


@pytest.mark.parametrize(
    ("name", "between"), [("llama2", ["▁"]), ("command_r", ["<|END_RESPONSE|>"]), ("chatml", []), ("mistral", [])]
)
def test_everything_from_the_content_to_the_turn_end_is_the_targets(name: str, between: list[str]) -> None:
    """Serving writes the header and reads until the end token; what a template has between them the target writes."""
    (row,) = rows_of(renderer(name), THREE, end_ids(name))
    tokens = tokenizer_of(name).convert_ids_to_tokens(row.ids)
    last = len(between) + 1
    ends = [i + 1 for i, mine in enumerate(row.supervised) if mine and not [*row.supervised, False][i + 1]]
    assert len(ends) == 3
    for end, turn in zip(ends, THREE[1::2], strict=True):
        assert tokens[end - last : end] == [*between, FAMILIES[name].end]
        assert row.supervised[end - last - 1 : end] == [True] * (last + 1)
        content = tokenizer_of(name).decode(row.ids[end - last - 1 : end - last]).strip()
        assert turn["content"].endswith(content)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - THOUGHT_IN_HEADER))
def test_a_turn_is_supervised_in_one_piece(name: str) -> None:
    """As it is in what the target has written itself: from the first token of the answer to the one that ends it."""
    rows = rows_of(renderer(name), THREE, end_ids(name))
    tok = tokenizer_of(name)
    spans = [ids for row in rows for ids in supervised_ids(row)]
    assert len(spans) == 3
    ends = end_ids(name)
    for ids, turn in zip(spans, THREE[1::2], strict=True):
        assert [i for i in ids if i in ends] == ids[-1:]
        assert turn["content"] in tok.decode(ids)


@pytest.mark.parametrize("answer", ["5 apples", "7", "北京", "The answer", "  x", "one", "(a)"])
def test_the_space_that_a_tokenizer_puts_after_a_special_token_is_the_answers(answer: str) -> None:
    """The target writes it, as a token of its own or with the first letters, whatever the content."""
    tok = tokenizer_of("mistral_spaced")
    (row,) = rows_of(renderer("mistral_spaced"), [user("what"), assistant(answer)], end_ids("mistral_spaced"))
    prompt = served(tok, [user("what")])
    assert tok.convert_ids_to_tokens(prompt[-1:]) == ["[/INST]"]
    assert row.ids[: len(prompt)] == prompt
    assert row.supervised == [False] * len(prompt) + [True] * (len(row.ids) - len(prompt))
    assert str(tok.convert_ids_to_tokens(row.ids)[len(prompt)]).startswith("▁")


def supervised_ids(row: Row) -> list[list[int]]:
    spans: list[list[int]] = []
    for position, (token, mine) in enumerate(zip(row.ids, row.supervised, strict=True)):
        if mine:
            if not row.supervised[position - 1]:
                spans.append([])
            spans[-1].append(token)
    return spans


def test_thoughts_written_either_way_give_the_same_row() -> None:
    apart = [user("what"), assistant("now", "I think")]
    together = [user("what"), assistant("<think>\nI think\n</think>\n\nnow")]
    for name in ("qwen3", "deepseek_r1"):
        rows = [rows_of(renderer(name), m, end_ids(name), thinking=True)[0] for m in (apart, together)]
        assert (rows[0].ids, rows[0].supervised) == (rows[1].ids, rows[1].supervised)


def test_what_does_not_begin_as_it_is_served_is_refused() -> None:
    with pytest.raises(NotAsServed, match=r"serving ends the prompt with .*<think>\\n'"):
        rows_of(renderer("deepseek_r1"), THREE, end_ids("deepseek_r1"))
    thought = [user("what"), assistant("now", "I think")]
    with pytest.raises(NotAsServed, match="the turn has thoughts"):
        rows_of(renderer("qwen3"), thought, end_ids("qwen3"), thinking=False)


@pytest.mark.parametrize("turn", [assistant("now", "I think"), assistant("<think>\nI think\n</think>\n\nnow")])
def test_thoughts_after_a_header_that_closed_them_are_refused(turn: dict[str, Any]) -> None:
    messages = [user("what"), turn]
    with pytest.raises(NotAsServed, match=r"has thoughts, and serving ends the prompt with .*</think>\\n\\n'"):
        rows_of(renderer("hybrid"), messages, end_ids("hybrid"), thinking=False)
    (row,) = rows_of(renderer("hybrid"), messages, end_ids("hybrid"), thinking=True)
    said = tokenizer_of("hybrid").decode([i for ids in supervised_ids(row) for i in ids])
    assert said == "I think\n</think>\n\nnow<|end|>"


@pytest.mark.parametrize("name", ["deepseek_r1", "hybrid"])
@pytest.mark.parametrize("text", ["I think\n</think>\n\nnow", "</think>now", "a <b>\n</think>\n"])
def test_an_answer_that_closes_the_thought_of_the_header_is_what_the_target_wrote(name: str, text: str) -> None:
    messages, tok = [user("what"), assistant(text)], tokenizer_of(name)
    (row,) = rows_of(renderer(name), messages, end_ids(name), thinking=True)
    prompt = served(tok, messages[:1], enable_thinking=True)
    assert tok.decode(prompt).endswith("<think>\n")
    assert row.ids[: len(prompt)] == prompt
    assert row.supervised == [False] * len(prompt) + [True] * (len(row.ids) - len(prompt))
    assert tok.decode(row.ids[len(prompt) :]) == text + FAMILIES[name].end


@pytest.mark.parametrize("name", ["deepseek_r1", "hybrid"])
def test_an_answer_cut_off_in_the_thought_of_the_header_is_used(name: str) -> None:
    messages, tok = [user("what"), assistant("I think that")], tokenizer_of(name)
    with pytest.raises(NotAsServed):
        rows_of(renderer(name), messages, end_ids(name), thinking=True)
    (row,) = rows_of(renderer(name), messages, end_ids(name), thinking=True, unfinished=True)
    prompt = served(tok, messages[:1], enable_thinking=True)
    assert (row.ids[: len(prompt)], tok.decode(row.ids[len(prompt) :])) == (prompt, "I think that")
    assert row.supervised == [False] * len(prompt) + [True] * (len(row.ids) - len(prompt))


def test_thoughts_that_a_template_leaves_out_are_counted() -> None:
    thought = [user("what"), assistant("now", "I think")]
    assert rows_of(renderer("chatml"), thought, end_ids("chatml"))[0].reasoning_dropped
    assert not rows_of(renderer("qwen3"), thought, end_ids("qwen3"))[0].reasoning_dropped


@pytest.mark.parametrize(
    ("name", "switch"),
    [("qwen3", "enable_thinking"), ("smollm3", "enable_thinking"), ("deepseek_v3", "thinking"), ("granite", "thinking"),
     ("hybrid", "enable_thinking"),
     ("chatml", None), ("deepseek_r1", None), ("gpt_oss", None)],
)  # fmt: skip
def test_the_switch_of_the_thinking_mode_is_found(name: str, switch: str | None) -> None:
    assert renderer(name).thinking_switch == switch


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen3", "granite", "gpt_oss"])
def test_calls_are_supervised_or_not(name: str) -> None:
    tok, messages = tokenizer_of(name), PACK["tools"]["messages"]
    learnt = rows_of(renderer(name), messages, end_ids(name), tools=TOOLS)
    left = rows_of(renderer(name), messages, end_ids(name), tools=TOOLS, supervise_tool_calls=False)
    said = [tok.decode(ids) for row in learnt for ids in supervised_ids(row)]
    assert len(said) == 2
    assert "Rome" in said[0]
    assert any(said[0].endswith(end) for end in (FAMILIES[name].end, "<|call|>"))
    assert [tok.decode(ids) for row in left for ids in supervised_ids(row)] == said[1:]
    assert "sunny and warm" in said[1]
    assert [row.ids for row in left] == [row.ids for row in learnt]
    assert not any(row.without_turn_end for row in learnt)


def test_words_before_a_call_are_supervised_without_the_call() -> None:
    turn = {"role": "assistant", "content": "You are", "tool_calls": [CALL]}
    messages = [user("weather"), turn]
    (row,) = rows_of(renderer("qwen3"), messages, end_ids("qwen3"), supervise_tool_calls=False)
    assert [tokenizer_of("qwen3").decode(ids) for ids in supervised_ids(row)] == ["You are"]


@pytest.mark.parametrize("name", ["chatml", "qwen3"])
def test_last_turn_only(name: str) -> None:
    (row,) = rows_of(renderer(name), THREE, end_ids(name), last_turn_only=True)
    every = rows_of(renderer(name), THREE, end_ids(name))
    assert row.ids == every[-1].ids
    assert [tokenizer_of(name).decode(ids) for ids in supervised_ids(row)] == ["two<|im_end|>"]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_rendering_is_that_of_transformers(name: str) -> None:
    tok = tokenizer_of(name)
    for conversation in PACK.values():
        if conversation.get("tools") and not FAMILIES[name].tools:
            continue
        for answer in (False, True):
            text = rendered(
                tok, json_arguments(conversation["messages"]), tools=conversation.get("tools"),
                add_generation_prompt=answer,
            )  # fmt: skip
            ids = renderer(name).ids(conversation["messages"], tools=conversation.get("tools"), answer=answer)
            assert ids == tok(text, add_special_tokens=False)["input_ids"]


def json_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments of calls as an object, as engines hand them to templates."""
    call = {**CALL, "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    return [{**m, "tool_calls": [call]} if "tool_calls" in m else m for m in messages]


def test_another_version_of_transformers_renders_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specflow.data.template._compiled", lambda source: None)
    for name in ("chatml", "qwen3", "mistral"):
        assert Renderer(tokenizer_of(name)).ids(THREE, answer=True) == renderer(name).ids(THREE, answer=True)


def test_messages_that_a_template_does_not_take() -> None:
    with pytest.raises(TemplateRefused, match="must alternate"):
        rows_of(renderer("gemma"), [user("a"), user("b"), assistant("c")], end_ids("gemma"))
    with pytest.raises(TemplateRefused):
        rows_of(renderer("command_r"), PACK["tools"]["messages"], end_ids("command_r"))


def test_what_was_learned_of_a_template_changes_no_row() -> None:
    """Rows are the same whether their shape was seen before or not."""
    for name in sorted(FAMILIES.keys() - THOUGHT_IN_HEADER):
        used = renderer(name)
        rows_of(used, THREE, end_ids(name))
        for contents in (("7", "x"), ("<|im_end|>", "a"), (" x", "x\n"), ("</think>", "<think>")):
            messages = [user("q"), assistant(contents[0]), user("r"), assistant(contents[1])]
            results = []
            for each in (used, Renderer(tokenizer_of(name))):
                try:
                    results.append(rows_of(each, messages, end_ids(name)))
                except NotAsServed as error:
                    results.append(str(error))
            assert results[0] == results[1]
