"""``regenerate.server``: addresses, what must be given, and what is not in the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides
from specflow.stages.regenerate import files
from specflow.workflow.keys import key_parameters
from tests.config.support import VALID, problems, write


@pytest.mark.parametrize(
    ("written", "used"),
    [
        ("http://localhost:30000", "http://localhost:30000/v1"),
        ("http://localhost:30000/", "http://localhost:30000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/other/api", "https://host/other/api"),
    ],
)
def test_addresses(tmp_path: Path, written: str, used: str) -> None:
    settings = parse_overrides([f"regenerate.server.url={written}"])
    assert load_config(write(tmp_path), settings).config.regenerate.server.url == used


@pytest.mark.parametrize("written", ["localhost:30000", "ftp://host", "http://", "http://me:secret@host"])
def test_what_is_no_address(tmp_path: Path, written: str) -> None:
    (problem,) = problems(write(tmp_path), f"regenerate.server.url={written!r}")
    assert problem.path == "regenerate.server.url"


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    text = VALID.replace("  max_new", "  server: {url: 'http://me:secret@host'}\n  max_new")
    (problem,) = problems(write(tmp_path, text))
    assert problem.path == "regenerate.server.url"
    assert "secret" not in str(problem)


def test_a_server_engine_needs_an_address(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path), "regenerate.engine=openai")
    assert (problem.path, problem.message) == ("regenerate.server.url", "no server")


SERVED = ("regenerate.engine=openai", "regenerate.server.url=http://host:1")


def test_greedy_answers_are_not_sampled(tmp_path: Path) -> None:
    found = problems(write(tmp_path), *SERVED, "regenerate.top_p=0.9", "regenerate.top_k=5")
    assert sorted(p.path for p in found) == ["regenerate.top_k", "regenerate.top_p"]
    assert {p.message for p in found} == {"nothing is sampled at temperature 0"}


@pytest.mark.parametrize("engine", [SERVED, ()])
def test_both_engines_sample_as_they_are_told(tmp_path: Path, engine: tuple[str, ...]) -> None:
    settings = (*engine, "regenerate.top_p=0.9", "regenerate.top_k=5", "regenerate.temperature=0.7")
    section = load_config(write(tmp_path), parse_overrides(settings)).config.regenerate
    assert (section.temperature, section.top_p, section.top_k) == (0.7, 0.9, 5)


def test_template_arguments_are_plain(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path), "regenerate.chat_template_kwargs={a: [1], b: low}")
    assert "['a']" in problem.found
    assert "'b'" not in problem.found


def test_the_name_of_a_file_of_prompts_is_in_the_key_and_its_folder_is_not(tmp_path: Path) -> None:
    def key(folder: str, name: str) -> object:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / name
        path.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
        section = load_config(write(tmp_path), parse_overrides([f"regenerate.train.0.path={path}"])).config.regenerate
        return key_parameters(section, files(section))

    assert key("one", "a.jsonl") == key("two", "a.jsonl")
    assert key("one", "a.jsonl") != key("one", "b.jsonl")  # rows are named after it
    assert key("one", "a.jsonl") != key("one", "a.json")  # and read by its suffix


def test_where_and_how_fast_is_not_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-secret")
    path = write(tmp_path)

    def key(*settings: str) -> object:
        section = load_config(path, parse_overrides(settings)).config.regenerate
        return key_parameters(section)

    first = key("regenerate.server.url=http://one:1")
    assert first == key(
        "regenerate.server.url=http://two:2",
        "regenerate.server.api_key_file=key",
        "regenerate.server.concurrency=2",
        "regenerate.server.retries=1",
        "regenerate.server.backoff=0.5",
        "regenerate.server.timeout=3",
    )
    assert first != key("regenerate.server.url=http://one:1", "regenerate.server.model=other")
    assert "secret" not in str(first)
