"""Supervised spans: exact by brute force over characters, and the known ways to get them wrong."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.data.agreement import common_prefix, common_suffix
from specflow.data.frames import STAND_INS
from specflow.data.quarantine import DataError
from specflow.data.rendering import Renderer, flat_ids
from specflow.data.spans import rows_of
from tests.data.chat_helpers import CHATML, TEMPLATES, THINKING, TRIMMING, brute_force, chatml, tokenizer


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def rows(tok: Any, messages: list[dict[str, str]]) -> Any:
    return rows_of(Renderer(tok), messages, {tok.eos_token_id})


def supervised_text(tok: Any, row: Any) -> str:
    ids = [i for i, kept in zip(row.ids, row.supervised, strict=True) if kept]
    return str(tok.decode(ids, skip_special_tokens=False))


CONTENT = st.text(alphabet="x7owthe lin\n.é", min_size=1, max_size=12).filter(str.strip)
TOKENIZERS = {name: tokenizer(template, end=end) for name, (template, end, _) in TEMPLATES.items()}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(TEMPLATES)), turns=st.integers(1, 3), data=st.data())
def test_spans_are_exactly_the_contents_and_turn_ends(name: str, turns: int, data: st.DataObject) -> None:
    messages = [m for _ in range(turns) for m in (user(data.draw(CONTENT)), assistant(data.draw(CONTENT)))]
    if data.draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": data.draw(CONTENT)})
    tok = TOKENIZERS[name]
    ids, marks = brute_force(tok, TEMPLATES[name][2](messages))
    (row,) = rows(tok, messages)
    assert row.ids == ids
    assert row.supervised == marks
    assert row.prompt_length == marks.index(True)
    assert not row.without_turn_end


def test_newline_after_the_turn_end_is_template() -> None:
    tok = tokenizer()
    (row,) = rows(tok, [user("hi"), assistant("yes")])
    assert supervised_text(tok, row) == "yes<|im_end|>"
    assert row.supervised[-1] is False
    assert tok.decode(row.ids[-1:]) == "\n"


def test_history_with_thinking_dropped_gives_one_row_per_turn() -> None:
    tok = tokenizer(THINKING)
    contents = ["<think>\none\n</think>\n\nA1", "<think>\ntwo\n</think>\n\nA2", "<think>\nthree\n</think>\n\nA3"]
    messages = [m for i, c in enumerate(contents) for m in (user(f"Q{i}"), assistant(c))]
    made = rows(tok, messages)
    assert [supervised_text(tok, row) for row in made] == [c + "<|im_end|>" for c in contents]
    assert all(row.rewritten for row in made)
    # Earlier thoughts are not in a later row's prompt, as they are not when it is served.
    assert "one" not in tok.decode(made[1].ids)
    assert tok.decode(made[1].ids[: made[1].prompt_length]).endswith(
        "A1<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n"
    )


def test_empty_think_block_of_the_template_is_not_supervised() -> None:
    tok = tokenizer(THINKING)
    messages = [user("Q0"), assistant("A0"), user("Q1"), assistant("A1"), user("Q2"), assistant("A2")]
    made = rows(tok, messages)
    assert [supervised_text(tok, row) for row in made] == ["A0<|im_end|>", "A1<|im_end|>", "A2<|im_end|>"]
    assert tok.decode(made[2].ids[: made[2].prompt_length]).endswith("assistant\n<think>\n\n</think>\n\n")


def test_think_block_that_belongs_to_the_header_is_not_supervised() -> None:
    template = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
    tok = tokenizer(template)
    (row,) = rows(tok, [user("q"), assistant("answer")])
    assert supervised_text(tok, row) == "answer<|im_end|>"


def test_white_space_the_template_inserts_is_not_supervised() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}{{ '\n\n' }}{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tok = tokenizer(template)
    (row,) = rows(tok, [user("q"), assistant("answer")])
    assert supervised_text(tok, row) == "answer<|im_end|>"
    assert tok.decode(row.ids[: row.prompt_length]).endswith("assistant\n\n\n")


def test_template_that_ignores_the_generation_flag_does_not_supervise_its_header() -> None:
    tok = tokenizer(CHATML.split("{% if add_generation_prompt")[0])
    messages = [user("q"), assistant("answer")]
    (row,) = rows(tok, messages)
    assert (row.ids, row.supervised) == brute_force(tok, chatml(messages))


def test_text_of_the_template_before_the_turn_end_is_the_targets_to_write() -> None:
    """Serving adds nothing between an answer and its end token: nobody else can write what stands there."""
    tok = tokenizer(CHATML.replace("{{ m.content }}", "{{ m.content }}\n[end]"))
    (row,) = rows(tok, [user("q"), assistant("answer"), user("q"), assistant("ow")])
    assert supervised_text(tok, row) == "answer\n[end]<|im_end|>ow\n[end]<|im_end|>"
    assert tok.decode(row.ids[: row.prompt_length]).endswith("assistant\n")


def test_a_turn_end_that_is_not_eos_is_supervised() -> None:
    tok = tokenizer(CHATML, end="</s>")
    (row,) = rows(tok, [user("q"), assistant("answer")])
    assert supervised_text(tok, row) == "answer<|im_end|>"


def test_a_template_without_turn_end_says_so() -> None:
    tok = tokenizer("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    (row,) = rows(tok, [user("q"), assistant("on")])
    assert supervised_text(tok, row) == "on"
    assert row.without_turn_end


def test_padding_that_equals_eos_masks_nothing() -> None:
    tok = tokenizer(CHATML, pad="<|im_end|>")
    assert tok.pad_token_id == tok.eos_token_id
    (row,) = rows(tok, [user("q"), assistant("a"), user("q"), assistant("b")])
    assert supervised_text(tok, row) == "a<|im_end|>b<|im_end|>"


def test_bos_comes_once_from_the_template() -> None:
    tok = tokenizer(TRIMMING, end="<|eot|>", bos=True)
    assert tok("x")["input_ids"][0] == tok.bos_token_id  # the tokenizer by itself would add another
    (row,) = rows(tok, [user("q"), assistant("a")])
    assert row.ids.count(tok.bos_token_id) == 1
    assert row.ids[0] == tok.bos_token_id


def test_merge_across_the_border_is_supervised() -> None:
    """The stub merges "o"+"w": the header ends with "o", the answer starts with "w"."""
    tok = tokenizer(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}:o"
        "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
        end="</s>",
    )
    (row,) = rows(tok, [user("q"), assistant("wet")])
    assert tok.convert_ids_to_tokens(row.ids) == ["q", ":", "ow", "e", "t", "</s>"]
    assert row.supervised == [False, False, True, True, True, True]


@pytest.mark.parametrize("text", [STAND_INS, STAND_INS[::-1], "x", "7", "x7", "7x", "xx", "77", "x x", "7 7"])
def test_contents_equal_to_the_stand_ins(text: str) -> None:
    tok = tokenizer()
    (row,) = rows(tok, [user(text), assistant(text), user(text), assistant(text)])
    assert supervised_text(tok, row) == f"{text}<|im_end|>{text}<|im_end|>"


def test_missing_chat_template_is_an_error() -> None:
    with pytest.raises(DataError, match="no chat template"):
        Renderer(tokenizer(None))


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize(
    "rendered",
    [
        [5, 6],
        (5, 6),
        [[5, 6]],
        {"input_ids": [5, 6]},
        {"input_ids": [[5, 6]]},
        Holder(ids=[5, 6]),
        [Holder(ids=[5, 6])],
        Holder(data={"input_ids": [5, 6]}),
        Holder(tolist=lambda: [[5, 6]]),
    ],
)
def test_every_return_type_becomes_a_flat_list(rendered: Any) -> None:
    assert flat_ids(rendered) == [5, 6]


@pytest.mark.parametrize("rendered", ["text", ["a", "b"], [[5], [6]], None])
def test_what_is_not_one_row_of_ids_is_refused(rendered: Any) -> None:
    with pytest.raises(DataError):
        flat_ids(rendered)


def test_common_prefix_by_enumeration() -> None:
    for one in itertools.product((0, 1), repeat=3):
        for two in itertools.product((0, 1), repeat=2):
            wanted = max(n for n in range(3) if one[:n] == two[:n])
            assert common_prefix(one, two) == wanted
            assert common_suffix(one[::-1], two[::-1]) == wanted
