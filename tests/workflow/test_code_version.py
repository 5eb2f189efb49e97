"""A stage's version follows the code it imports, and only that."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

import pytest

from specflow.workflow.code_version import CodeVersions
from specflow.workflow.registry import STAGES

FILES = {
    "__init__.py": "",
    "stages/__init__.py": "",
    "stages/train.py": '"""Doc."""\nfrom specflow.config.train import Params\n\n\n'
    "def run():\n    from ..training import loop\n    return loop.go()\n",
    "stages/bench.py": "import importlib\nx = importlib.import_module('specflow.data.late')\n",
    "training/__init__.py": "",
    "training/loop.py": "from specflow.data.helper import number\nimport specflow.workflow.store\n\n\n"
    "def go():\n    return number\n",
    "data/__init__.py": "",
    "data/helper.py": "number = 1\n",
    "data/late.py": "late = 1\n",
    "data/unrelated.py": "other = 1\n",
    "config/__init__.py": "",
    "config/train.py": "class Params:\n    steps = 1\n    '''Steps.'''\n",
    "workflow/__init__.py": "",
    "workflow/store.py": "from specflow.data import unrelated\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "specflow"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def versions(package: Path) -> dict[str, str]:
    fresh = CodeVersions({"specflow": package})
    return {name: fresh.version(f"specflow.stages.{name}") for name in ("train", "bench")}


def test_closure_is_what_the_stage_imports(package: Path) -> None:
    closure = CodeVersions({"specflow": package}).closure("specflow.stages.train")
    assert closure == {
        "specflow",
        "specflow.stages",
        "specflow.stages.train",
        "specflow.training",
        "specflow.training.loop",
        "specflow.data",
        "specflow.data.helper",
        "specflow.config",
        "specflow.config.train",
    }


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("data/helper.py", "number = 2\n", {"train"}),
        ("config/train.py", "class Params:\n    steps = 2\n", {"train"}),
        ("data/late.py", "late = 2\n", {"bench"}),
        ("data/helper.py", "# a comment\n\nnumber   =   1\n", set()),
        ("data/helper.py", '"""A docstring."""\n\nnumber = 1\n', set()),
        ("config/train.py", "class Params:\n    steps = 1\n    '''Other words.'''\n", set()),
        ("data/unrelated.py", "other = 2\n", set()),
        ("workflow/store.py", "nothing = 1\n", set()),
        ("data/__init__.py", "flag = 1\n", {"train", "bench"}),
        ("data/new.py", "new = 1\n", set()),
    ],
)
def test_version_changes_with_imported_code_only(package: Path, name: str, text: str, changed: set[str]) -> None:
    before = versions(package)
    (package / name).write_text(text)
    after = versions(package)
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_a_missing_stage_is_an_error(package: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"specflow\.stages\.absent"):
        CodeVersions({"specflow": package}).version("specflow.stages.absent")


def test_every_file_is_parsed_once_for_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse

    def noted(source: bytes, filename: str) -> ast.Module:
        parsed.append(filename)
        return parse(source, filename)

    monkeypatch.setattr(ast, "parse", noted)
    fresh = CodeVersions()
    for module in STAGES.modules.values():
        with suppress(ModuleNotFoundError):
            fresh.version(module)
    assert len(parsed) > 100
    assert sorted(set(parsed)) == sorted(parsed)


def test_a_name_put_together_at_run_time_is_everything_below_its_package(package: Path) -> None:
    (package / "stages" / "bench.py").write_text(
        "import importlib\nname = 'a'\nx = importlib.import_module(f'specflow.methods.{name}.method')\n"
    )
    for method in ("one", "two"):
        (package / "methods" / method).mkdir(parents=True)
        for name in ("__init__", "method", "network"):
            (package / "methods" / method / f"{name}.py").write_text("")
    (package / "methods" / "__init__.py").write_text("")
    below = {n for n in CodeVersions({"specflow": package}).closure("specflow.stages.bench") if "methods" in n}
    assert below == {
        "specflow.methods",
        *(f"specflow.methods.{m}{n}" for m in ("one", "two") for n in ("", ".method", ".network")),
    }
    before = versions(package)
    (package / "methods" / "two" / "network.py").write_text("width = 2\n")
    after = versions(package)
    assert (before["train"], before["bench"] == after["bench"]) == (after["train"], False)


@pytest.mark.parametrize("stage", ["train", "verify", "bench"])
def test_shipped_stages_that_run_a_drafter_depend_on_its_method(stage: str) -> None:
    assert "specflow.drafters.dflash.proposer" in CodeVersions().closure(f"specflow.stages.{stage}")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("data/templates/page.j2", {"train", "bench"}),
        ("data/table.json", {"train", "bench"}),
        ("data/__pycache__/helper.cpython-311.pyc", set()),
        ("data/.page.j2.swp", set()),
        ("workflow/notes.txt", set()),
    ],
)
def test_files_beside_the_code_count_by_their_bytes(package: Path, name: str, changed: set[str]) -> None:
    def after(text: str) -> dict[str, str]:
        (package / name).write_text(text)
        return versions(package)

    (package / name).parent.mkdir(exist_ok=True)
    before = versions(package)
    one, two = after("one"), after("two")
    assert {stage for stage in before if before[stage] != one[stage]} == changed
    assert {stage for stage in before if one[stage] != two[stage]} == changed
