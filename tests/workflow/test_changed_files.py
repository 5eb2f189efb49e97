"""Files outside the store that change between the plan and the run: the key would name what was not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.workflow.flow import Flow
from specflow.workflow.history import by_name, changes
from specflow.workflow.registry import Registry
from specflow.workflow.store import ArtifactStore
from tests.workflow.fakes.params import SourceParams
from tests.workflow.test_execution import execution, planned_source


def test_a_file_changed_after_the_plan_fails_the_stage(
    flow: Flow, registry: Registry, store: ArtifactStore, tmp_path: Path
) -> None:
    data = tmp_path / "data.txt"
    data.write_text("one")
    params = SourceParams(count=1, data=data)
    planned = planned_source(flow, registry, store, params)
    run, _ = execution(store, registry)
    data.write_text("two")
    result = run.run(planned)
    assert result.status == "failed"
    assert "files that 'source' reads were changed after the run was planned: content of data" in result.message
    assert not store.exists(planned.kind, planned.key)
    again = planned_source(flow, registry, store, params)
    assert again.key != planned.key
    assert run.run(again).status == "made"


def test_a_file_that_is_gone_fails_the_stage(
    flow: Flow, registry: Registry, store: ArtifactStore, tmp_path: Path
) -> None:
    data = tmp_path / "data.txt"
    data.write_text("one")
    planned = planned_source(flow, registry, store, SourceParams(count=1, data=data))
    data.unlink()
    result = execution(store, registry)[0].run(planned)
    assert result.status == "failed"
    assert "a file that 'source' reads is gone" in result.message


@pytest.mark.parametrize(("after", "said"), [("b", ["content of file.model.gguf"]), ("a", [])])
def test_files_that_no_parameter_names_are_told_by_name(after: str, said: list[str]) -> None:
    before = {"source": "package:x/model.gguf", "external_files": [["model.gguf", "a"]]}
    now = {**before, "external_files": [["model.gguf", after]]}
    assert list(changes(by_name(before), by_name(now))) == said
