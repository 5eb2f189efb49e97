"""A flow of three fake stages, in processes like the real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specflow.config.document import parse_document
from specflow.workflow.code_version import CodeVersions
from specflow.workflow.flow import Flow, parse_flow
from specflow.workflow.registry import Registry
from specflow.workflow.store import ArtifactStore

ROOT = Path(__file__).resolve().parents[2]

FLOW = """
name: fake
stages:
  total:   {stage: total, needs: [scale, numbers], when: wanted}
  numbers: {stage: source}
  scale:   {stage: scale, needs: [numbers], foreach: scales}
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "kernels"), inherited]))


@pytest.fixture
def registry() -> Registry:
    modules = {name: f"tests.workflow.fakes.{name}" for name in ("source", "scale", "total")}
    return Registry(modules, versions=CodeVersions({"tests": ROOT / "tests"}))


@pytest.fixture
def flow(registry: Registry) -> Flow:
    return parse_flow(parse_document(FLOW, source="fake.yaml"), registry=registry)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")
