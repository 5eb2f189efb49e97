"""``inspect``: the right rows, what is supervised and special, in colour, plain, and as JSON."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specflow.cli.inspect import print_view
from specflow.data.documents import TOKENS_FILE, TokenDocument, write_documents
from specflow.data.viewing import Words, load_words, pieces_of, views
from specflow.targets.tiny import make_tiny_target
from specflow.workflow.commit import Attempt, Recipe
from specflow.workflow.store import ArtifactStore
from tests.cli.support import document, specflow

PROMPT = "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "漢字 \x1b[31m[b]is[/b] that<|im_end|>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    """A target, conversations and tokens; three rows, one of which has no ids."""
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    target = commit(store, "target", lambda path: make_tiny_target(path, 0), {})
    ids = encode(store.path("target", target))
    prompt, answer = ids(PROMPT), ids(ANSWER)

    def conversations(path: Path) -> None:
        talk = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "that"}]
        rows: list[dict[str, Any]] = [
            {"id": f"r{n}", "split": split, "kind": "k", "messages": talk, "finish": "stop", "greedy": True}
            for n, split in enumerate(("train", "train", "heldout"))
        ]
        rows[0] |= {"prompt_ids": prompt, "answer_ids": answer}
        (path / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def tokens(path: Path) -> None:
        mask = [False] * len(prompt) + [True] * len(answer)
        documents = [
            TokenDocument(
                id=f"d{n}", split=s, kind="k", ids=prompt + answer, supervised=mask, prompt_length=len(prompt)
            )
            for n, s in enumerate(("train", "heldout"))
        ]
        write_documents(path / TOKENS_FILE, documents)

    made = commit(store, "conversations", conversations, {"target": [target]})
    commit(store, "tokens", tokens, {"target": [target], "conversations": [made]})
    return store


def commit(store: ArtifactStore, kind: str, write: Any, inputs: dict[str, list[str]]) -> str:
    key = hashlib.sha256(kind.encode()).hexdigest()
    recipe = Recipe(
        kind=kind, key=key, stage=kind, item=None, code_version="1", parameters={}, key_parameters={}, inputs=inputs
    )
    attempt = Attempt(store, recipe)
    attempt.prepare()
    write(attempt.output)
    attempt.commit({})
    return key


def encode(target: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def folder(store: ArtifactStore, kind: str) -> Path:
    return store.path(kind, hashlib.sha256(kind.encode()).hexdigest())


def test_plain_text_marks_what_is_supervised(store: ArtifactStore) -> None:
    for kind in ("tokens", "conversations"):
        done = specflow("inspect", folder(store, kind), "--row", "1")
        assert done.exit_code == 0
        head, *body = done.stdout.splitlines()
        assert head.split("  ")[0] == "row 1"
        # An escape sequence in a text does not reach the terminal, and markup is text.
        assert "\n".join(body).rstrip() == f"{PROMPT}«{ANSWER}»".replace("\x1b", "\\x1b")
    assert "finish stop" in head


def test_colours_on_a_terminal(store: ArtifactStore) -> None:
    words = load_words(folder(store, "target"))
    view = next(views(folder(store, "tokens"), words, each=False))
    stream = io.StringIO()
    print_view(Console(file=stream, force_terminal=True, color_system="standard", width=200), view, ids=False)
    shown = stream.getvalue()
    assert "\x1b[7m<|im_start|>\x1b[0muser" in shown  # special: reversed
    assert "\x1b[32m漢字 \\x1b[31m[b]is[/b] that\x1b[0m" in shown  # supervised: green
    assert "\x1b[7;32m<|im_end|>\x1b[0m" in shown  # both
    assert "«" not in shown


def test_ids_show_every_token_and_parts_of_characters(store: ArtifactStore) -> None:
    ids = encode(folder(store, "target"))
    done = specflow("inspect", folder(store, "tokens"), "--row", "1", "--ids")
    first, second, third = ids("漢")
    assert f"«\\xe6‹{first}›\\xbc‹{second}›\\xa2‹{third}›" in done.stdout
    assert f"<|im_end|>‹{ids('<|im_end|>')[0]}›»" in done.stdout


def test_json_has_pieces_that_join_to_the_ids(store: ArtifactStore) -> None:
    ids = encode(folder(store, "target"))
    for more in ((), ("--ids",)):
        found = document(specflow("inspect", folder(store, "tokens"), "--id", "d1", "--json", *more))
        (row,) = found["rows"]
        assert (row["row"], row["split"], row["kind"]) == (2, "heldout", "k")
        assert [i for piece in row["pieces"] for i in piece["ids"]] == ids(PROMPT + ANSWER)
        assert [i for p in row["pieces"] if p["supervised"] for i in p["ids"]] == ids(ANSWER)
        assert row["supervised_tokens"] == len(ids(ANSWER))
        assert {p["text"] for p in row["pieces"] if p["special"]} == {"<|im_start|>", "<|im_end|>"}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ([], [1, 2, 3]),
        (["--limit", "2"], [1, 2]),
        (["--split", "heldout"], [3]),
        (["--id", "r1"], [2]),
        (["--row", "2", "--kind", "k"], [2]),
    ],
)
def test_rows_are_chosen(store: ArtifactStore, options: list[str], rows: list[int]) -> None:
    found = document(specflow("inspect", folder(store, "conversations"), "--json", *options))
    assert [row["row"] for row in found["rows"]] == rows


def test_a_conversation_without_ids_is_shown_by_its_messages(store: ArtifactStore) -> None:
    done = specflow("inspect", "conversations/", "--store", store.root, "--row", "2")
    assert "user: what?\nassistant: «that\n»" in done.stdout


def test_turns_of_the_input_are_not_shown_as_learned_and_rows_are_read_one_by_one(tmp_path: Path) -> None:
    talk = [{"role": role, "content": role[0] * n} for n in (1, 2) for role in ("user", "assistant")]
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"id": "r", "messages": talk, "answered": [3]}) + "\n{torn")
    first = next(views(path, Words(), each=False))
    assert [(p.text, p.supervised) for p in first.pieces if not p.special] == [
        ("u\n", False), ("a\n", False), ("uu\n", False), ("aa\n", True),
    ]  # fmt: skip
    tokens = tmp_path / TOKENS_FILE
    write_documents(
        tokens,
        [TokenDocument(id="d", split="train", kind="k", ids=[1, 2], supervised=[False, True], prompt_length=1)],
    )
    tokens.write_text(tokens.read_text() + "{torn")
    assert next(views(tokens, Words(), each=False)).supervised_tokens == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["conversations/", "--row", "9"], "no such row"),
        (["target/"], "this artifact has no rows to show"),
        (["zzz"], "no artifact starts with 'zzz'"),
        (["tokens"], "which?"),
    ],
)
def test_what_cannot_be_shown_is_said(store: ArtifactStore, arguments: list[str], said: str) -> None:
    done = specflow("inspect", *arguments, "--store", store.root)
    assert done.exit_code == 2
    assert said in done.stderr


def test_files_and_other_directories(store: ArtifactStore, tmp_path: Path) -> None:
    file = folder(store, "tokens") / TOKENS_FILE
    assert document(specflow("inspect", file, "--json"))["rows"][0]["pieces"][0]["text"] == "<|im_start|>"
    alone = tmp_path / "some.jsonl"
    alone.write_bytes(file.read_bytes())
    (first,) = document(specflow("inspect", alone, "--json", "--row", "1"))["rows"]
    assert first["pieces"][0]["text"].startswith("<")  # no tokenizer: ids
    found = document(specflow("inspect", alone, "--json", "--row", "1", "--target", folder(store, "target")))
    assert found["rows"][0]["pieces"][0]["text"] == "<|im_start|>"
    assert specflow("inspect", tmp_path).exit_code == 2


def test_by_kind_of_a_configuration_that_has_not_run(tmp_path: Path) -> None:
    from tests.config.support import write

    done = specflow("inspect", "tokens", "--config", write(tmp_path), "--store", tmp_path / "store")
    assert done.exit_code == 2
    assert "has not been made yet" in done.stderr
    assert "specflow tokenize" in done.stderr


def test_pieces_of_the_same_sort_are_joined() -> None:
    words = Words(pieces=[b"a", b"b", b"<s>"], special={2})
    found = pieces_of([0, 1, 2, 2, 0, 1, 5], [False] * 4 + [True] * 2 + [False], words, each=False)
    assert [(p.text, p.supervised, p.special) for p in found] == [
        ("ab", False, False), ("<s>", False, True), ("<s>", False, True), ("ab", True, False), ("<5>", False, False),
    ]  # fmt: skip
