"""Encoding piece by piece gives the ids of the whole."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specflow.data.pieces import Encoded, PieceEncoder, safe_cuts
from tests.data.families import FAMILIES, tokenizer_of


@cache
def encoder(name: str, kind: str | None) -> PieceEncoder:
    return PieceEncoder(tokenizer_of(name, kind), FAMILIES[name].special)


def whole(tok: Any, text: str) -> list[int]:
    return list(tok(text, add_special_tokens=False)["input_ids"])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(FAMILIES)), kind=st.sampled_from((None, "unigram", "metaspace")), data=st.data())
def test_pieces_and_continuations(name: str, kind: str | None, data: st.DataObject) -> None:
    tok, pieces = tokenizer_of(name, kind), encoder(name, kind)
    part = st.one_of(st.sampled_from(FAMILIES[name].special), st.text(alphabet=" \nowx<|>_é", max_size=6))
    text = "".join(data.draw(st.lists(part, max_size=8)))
    made = pieces.encode(text)
    assert made.ids == whole(tok, text)
    length = data.draw(st.integers(0, len(text)))
    suffix = "".join(data.draw(st.lists(part, max_size=3)))
    longer, (shared, rest) = pieces.continued(made, length, suffix), pieces.rest(made, length, suffix)
    assert longer.ids == whole(tok, text[:length] + suffix)
    assert longer == Encoded(*[getattr(pieces.encode(text[:length] + suffix), n) for n in Encoded.__slots__])
    assert longer.ids == made.ids[: made.counts[shared]] + rest.ids


def made_of(*tokens: AddedToken) -> Tokenizer:
    core = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.add_tokens(list(tokens))
    return core


def token(content: str, **more: bool) -> AddedToken:
    return AddedToken(content, **{"normalized": False, **more})


@pytest.mark.parametrize(
    ("tokens", "cuts"),
    [
        ([token("<a>"), token("<b>")], {"<a>", "<b>"}),
        ([token("<a>", rstrip=True)], {"<a>"}),
        ([token("<a>", lstrip=True)], set()),
        ([token("<a>", single_word=True)], set()),
        ([token("<a>", normalized=True)], set()),
        ([token(" <a>")], set()),
        ([token("<a>"), token("x<a>y")], {"x<a>y"}),  # "x<a>y" is one token
        ([token("<a>"), token("x<")], {"x<"}),  # in "x<a>" the other one comes first
        ([token("<a>"), token(">x")], {"<a>"}),  # and here it comes too late; but "<a>x" has no ">x"
        ([token("<a><")], set()),  # overlaps itself
    ],
)
def test_only_safe_cuts(tokens: list[AddedToken], cuts: set[str]) -> None:
    assert set(safe_cuts(made_of(*tokens), [t.content for t in tokens])) == cuts


def test_special_tokens_that_are_text_are_no_cuts() -> None:
    core = made_of()
    core.add_special_tokens([token("<a>", special=True)])
    assert safe_cuts(core, ["<a>"]) == ("<a>",)
    core.encode_special_tokens = True
    assert safe_cuts(core, ["<a>"]) == ()


def test_padding_and_truncation_of_the_tokenizer_file_do_not_matter() -> None:
    core = made_of(token("<a>"))
    core.enable_truncation(2)
    core.enable_padding(length=9)
    tok = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<unk>")
    assert PieceEncoder(tok, ["<a>"]).encode("a a a <a> a").ids == [0, 0, 0, 2, 0]
