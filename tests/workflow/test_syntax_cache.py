"""Versions are the same with the cache, an edit is never missed, and a damaged cache is no cache."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from specflow.workflow import code_version
from specflow.workflow.code_version import CodeVersions
from specflow.workflow.syntax_cache import SyntaxCache

READER = Path(code_version.__file__)
FILES = {
    "__init__.py": "",
    "stages/__init__.py": "",
    "stages/train.py": "from ..data import helper\nfrom specflow.data.late import x\n",
    "data/__init__.py": "",
    "data/helper.py": "number = 1\n",
    "data/late.py": "x = 1\n",
    "data/words.txt": "one\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "specflow" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "specflow"


def version(package: Path, cache: SyntaxCache | None) -> str:
    return CodeVersions({"specflow": package}, cache=cache).version("specflow.stages.train")


def fresh(tmp_path: Path) -> SyntaxCache:
    return SyntaxCache(READER, prefix=tmp_path / "prefix")


def test_nothing_is_parsed_twice_and_the_version_is_that_without_cache(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = version(package, None)
    parsed: list[str] = []
    parse = ast.parse

    def counted(text: bytes, filename: str) -> ast.Module:
        parsed.append(filename)
        return parse(text, filename)

    monkeypatch.setattr(ast, "parse", counted)
    assert version(package, fresh(tmp_path)) == plain
    assert len(parsed) == 6
    assert version(package, fresh(tmp_path)) == plain
    assert len(parsed) == 6


@pytest.mark.parametrize("name", ["data/helper.py", "data/words.txt"])
def test_an_edit_of_the_same_length_and_time_is_seen(package: Path, tmp_path: Path, name: str) -> None:
    before = version(package, fresh(tmp_path))
    status = (package / name).stat()
    (package / name).write_text(FILES[name].replace("1", "2").replace("one", "two"))
    os.utime(package / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = version(package, fresh(tmp_path))
    assert after != before
    assert after == version(package, None)


@pytest.mark.parametrize("damage", ["", "[]", '{"a": 1}', "{", '{"a": ["x"]}'])
def test_a_damaged_cache_is_made_anew(package: Path, tmp_path: Path, damage: str) -> None:
    plain = version(package, fresh(tmp_path))
    (path,) = (tmp_path / "prefix" / "var" / "specflow").iterdir()
    path.write_text(damage)
    assert version(package, fresh(tmp_path)) == plain
    assert len(path.read_text()) > 100
