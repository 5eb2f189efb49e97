"""``regenerate.server``: addresses, what must be given, and what is not in the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.config.loading import load_config
from specflow.config.overrides import parse_overrides
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


def test_the_embedded_engine_samples_from_the_whole_distribution(tmp_path: Path) -> None:
    found = problems(write(tmp_path), "regenerate.top_p=0.9", "regenerate.top_k=5")
    assert sorted(p.path for p in found) == ["regenerate.top_k", "regenerate.top_p"]


def test_template_arguments_are_plain(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path), "regenerate.chat_template_kwargs={a: [1], b: low}")
    assert "['a']" in problem.found
    assert "'b'" not in problem.found


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
