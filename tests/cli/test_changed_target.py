"""A local target whose files change after features were captured: training is refused, both sides named."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.cli.work import open_work
from specflow.targets.tiny import make_tiny_target
from specflow.workflow.commit import Attempt
from specflow.workflow.planning import Plan
from tests.cli.support import document, specflow
from tests.config.support import VALID, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("model"), 0)


def commit_all(planned: Plan) -> None:
    """Stand-ins for every artifact: only keys are looked at here."""
    for node in planned.to_run:
        attempt = Attempt(planned.store, node.recipe)
        records = [planned.store.record(kind, key) for kind, key in node.inputs]
        attempt.prepare({f"{r.kind}/{r.key}": r.content_digest for r in records if r})
        (attempt.output / "payload").write_text(node.id)
        attempt.commit({})


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "chat_template.jinja", "config.json"])
def test_training_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, relative: bool
) -> None:
    for file in model.iterdir():
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    source = "./model" if relative else str(tmp_path / "model")
    config = write(tmp_path, VALID.replace("random:0", source) + f"store: {tmp_path / 'store'}\n")
    before = open_work("full-pipeline", str(config)).plan(only={"target", "regenerate", "tokenize", "capture"})
    commit_all(before)
    assert specflow("plan", "full-pipeline", "--config", config, "--only", "train").exit_code == 0
    with (tmp_path / "model" / name).open("ab") as changed:
        changed.write(b" ")
    result = specflow("train", "--config", config, "--json")
    assert result.exit_code == 2
    problems = {problem["path"]: problem for problem in document(result)["errors"]}
    old = {node.id: node.key[:12] for node in before.nodes}
    assert (problems["target"]["file"], problems["target"]["line"]) == (str(config), 3)
    assert problems["target"]["found"].startswith(f"target/{old['target']} (parameters changed: ")
    assert name in problems["target"]["found"]
    assert problems["target"]["expected"].startswith("target/")
    assert old["target"] not in problems["target"]["expected"]
    assert problems["capture"]["found"].startswith(f"features/{old['capture']} (input target")
    assert "run `specflow capture` first, or add --upstream" in problems["capture"]["hint"]
